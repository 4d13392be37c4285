// Counts that follow from the source: loops of known length, calls through pointers, templates, what is inlined two deep, recursion.
// `//# N`: how often the line runs, over all its copies.
#include <cstdio>
#include <cstdlib>

namespace shapes {
template <class T> struct box {
    T value;
    __attribute__((noinline)) T grown(T by) const {
        return value * by + 1; //# 25
    }
};
} // namespace shapes

static inline __attribute__((always_inline)) unsigned inner(unsigned x) {
    return x * 2654435761u >> 3;
}

static inline __attribute__((always_inline)) unsigned middle(unsigned x) {
    return inner(x) ^ (x << 5);
}

extern "C" __attribute__((noinline)) unsigned add(unsigned x) { return x + 17; } //# 200
extern "C" __attribute__((noinline)) unsigned sub(unsigned x) { return x - 3; } //# 100
extern "C" __attribute__((noinline)) unsigned rev(unsigned x) { return ~x; } //# 100
typedef unsigned (*operation)(unsigned);
static operation volatile operations[3] = {add, sub, rev};

extern "C" __attribute__((noinline)) unsigned depth(unsigned x) {
    if (x == 0)
        return 1;
    return depth(x - 1) * 3 + x;
}

extern "C" __attribute__((noinline)) unsigned work(unsigned rounds) {
    unsigned sum = 0;
    for (unsigned i = 0; i < rounds; i++) {
        if (i % 10 == 0)
            sum += operations[i / 10 % 4 % 3](i); //# 400
        else
            sum ^= middle(i); //# 3600
    }
    return sum;
}

extern "C" __attribute__((noinline)) unsigned never(unsigned x) {
    return x * x;
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? atoi(argv[1]) : 4000;
    unsigned sum = work(rounds) + depth(9);
    shapes::box<unsigned> box{sum};
    for (unsigned i = 0; i < 25; i++)
        sum += box.grown(i); //# 25
    if (rounds == 1)
        sum += never(sum); //# 0
    printf("%u\n", sum);
}
