// Exceptions through functions with clean-ups, of several types, rethrown, and stopped by a specification.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#define OPAQUE __attribute__((noinline))

struct Counts {
    int *count;
    explicit Counts(int *c) : count(c) {}
    ~Counts() { ++*count; }
};

OPAQUE int thrower(int x) {
    if (x % 3 == 0)
        throw std::runtime_error("a" + std::to_string(x));
    if (x % 5 == 0)
        throw x;
    if (x % 7 == 0)
        throw 'c';
    return x * 2;
}

OPAQUE int middle(int x, int *count) {
    Counts counts(count);
    try {
        return thrower(x) + 1;
    } catch (int i) {
        return -i;
    } catch (char) {
        Counts again(count);
        throw;
    }
}

static void *caller;

OPAQUE void knows_its_caller(int x) {
    caller = __builtin_return_address(0);
    if (x % 2)
        throw x;
}

OPAQUE int catches(int x) {
    try {
        knows_its_caller(x);
    } catch (int i) {
        return i % 3 ? i : -i;
    }
    return 1;
}

OPAQUE void stops(int x) noexcept {
    if (x > 1000)
        thrower(3);
}

[[noreturn]] static void ended() {
    std::puts("terminated");
    std::exit(0);
}

int main() {
    int count = 0;
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        try {
            Counts counts(&count);
            sum += middle(i, &count);
        } catch (const std::exception &e) {
            sum += e.what()[1];
        } catch (...) {
            sum -= 1000;
        }
    }
    for (int i = 0; i < 20; i++)
        sum += catches(i);
    std::vector<std::string> strings;
    for (int i = 0; i < 50; i++)
        strings.push_back(std::string(static_cast<size_t>(i), 'x'));
    try {
        strings.at(99);
    } catch (std::out_of_range &) {
        sum += 7;
    }
    stops(1);
    std::printf("%ld %d\n", sum, count);
    std::fflush(stdout);
    std::set_terminate(ended);
    stops(2000);
}
