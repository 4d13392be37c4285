// Exceptions carried to another thread and thrown again there.
//# others: allowed
//# arc: main -> capture 200
//# arc: capture -> thrower 200
//# arc: _start -> receiver 200
//# arc: receiver -> thrown_again 200
//# arc: thrown_again -> again 200
//# arc: receiver -> caught 200
#include "test.h"
#include <exception>
#include <pthread.h>
static std::exception_ptr carried;
extern "C" {
OPAQUE int caught(int x) { BARRIER(); return x; }
OPAQUE void thrower(int x) { if (x) throw x; BARRIER(); }
OPAQUE void capture(int x) { try { thrower(x); } catch (...) { carried = std::current_exception(); } BARRIER(); }
OPAQUE void again() { std::rethrow_exception(carried); }
OPAQUE void thrown_again() { again(); BARRIER(); }
OPAQUE void *receiver(void *) { try { thrown_again(); } catch (int x) { return (void *)(long)caught(x); } return 0; }
}
int main() {
    for (int i = 1; i <= 200; i++) {
        capture(i);
        pthread_t thread;
        void *result;
        CHECK(!pthread_create(&thread, 0, receiver, 0) && !pthread_join(thread, &result));
        CHECK((long)result == i);
        carried = nullptr;
    }
    return 0;
}
