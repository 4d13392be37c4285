// Connects again and again to a socket in the abstract namespace, and sends a packet each time. It says how many of them were
// answered.
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(argv[1]);
    char answer[4096];
    memcpy(address.sun_path + 1, argv[1], len);
    puts("ready");
    int connections = 0, answers = 0;
    for (int n = 0; n < 2000; n++) {
        int connected = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(connected, (struct sockaddr *)&address, sizeof address.sun_family + 1 + len)) return 90;
        connections++;
        // Some of them say nothing, and stay.
        if (n % 10 == 0) continue;
        send(connected, argv[2], strlen(argv[2]), MSG_NOSIGNAL);
        if (n % 10 == 1 && recv(connected, answer, sizeof answer, 0) > 0) answers++;
        close(connected);
    }
    printf("%d connections, %d answers\n", connections, answers);
    return 0;
}
