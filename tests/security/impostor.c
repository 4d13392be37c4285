// Listens by a name in the abstract namespace, which another program may have used before, and says what the first process
// sends that connects.
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(argv[1]);
    char packet[4096];
    memcpy(address.sun_path + 1, argv[1], len);
    int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listening, (struct sockaddr *)&address, sizeof address.sun_family + 1 + len)) return 90;
    if (listen(listening, 9)) return 91;
    puts("ready");
    fflush(stdout);
    int connected = accept(listening, 0, 0);
    puts(recv(connected, packet, sizeof packet, 0) > 0 ? "a packet" : "nothing");
    fflush(stdout);
    pause();
}
