// Exceptions in threads: thrown deep, through frames with destructors, rethrown, carried to other threads.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define OPAQUE __attribute__((noinline))

struct Guard {
    unsigned long &count;
    OPAQUE ~Guard() { count++; }
};

OPAQUE unsigned long deep(unsigned n, unsigned depth, unsigned long &count) {
    Guard guard{count};
    if (depth == 0) {
        switch (n % 4) {
        case 0: throw std::runtime_error("r" + std::to_string(n));
        case 1: throw n;
        case 2: throw std::string("s");
        default: return n;
        }
    }
    try {
        return deep(n, depth - 1, count) + 1;
    } catch (unsigned x) {
        if (depth % 3 == 0) throw x + 1; // another one, from a handler
        if (depth % 3 == 1) throw;
        return x;
    } catch (const std::string &) {
        if (depth > 5) std::rethrow_exception(std::current_exception());
        throw;
    }
}

OPAQUE unsigned long work(unsigned rounds, unsigned long seed) {
    unsigned long sum = seed, count = 0;
    for (unsigned i = 0; i < rounds; i++) {
        try {
            sum = sum * 31 + deep(i, i % 17, count);
        } catch (const std::exception &e) {
            sum = sum * 37 + std::string(e.what()).size();
        } catch (unsigned x) {
            sum = sum * 41 + x;
        } catch (const std::string &s) {
            sum = sum * 43 + s.size();
        }
    }
    return sum ^ count;
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? atoi(argv[1]) : 100000;
    std::vector<unsigned long> sums(4);
    std::exception_ptr carried;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < sums.size(); t++)
        threads.emplace_back([&, t] {
            sums[t] = work(rounds, t);
            if (t == 0) {
                try { throw std::runtime_error("carried"); } catch (...) { carried = std::current_exception(); }
            }
        });
    for (auto &thread : threads) thread.join();
    for (unsigned long sum : sums) printf("%016lx\n", sum);
    try { std::rethrow_exception(carried); } catch (const std::exception &e) { puts(e.what()); }
}
