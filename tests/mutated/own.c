// The library of work.c, or a part of it.
#include <stddef.h>
#include <stdint.h>

__attribute__((noinline)) static uint64_t step(uint64_t x, uint64_t y) { return (x ^ y) * 0x100000001b3; }

__attribute__((noinline)) static void swap(uint64_t *one, uint64_t *other) {
    uint64_t kept = *one;
    *one = *other;
    *other = kept;
}

__attribute__((noinline)) uint64_t fold(const uint64_t *values, size_t count, int way) {
    uint64_t result = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++) {
        switch (way) {
            case 0: result = step(result, values[i]); break;
            case 1: result += values[i]; break;
            case 2: result ^= values[count - 1 - i] >> 3; break;
            case 3: result = step(values[i], result) + i; break;
            case 4: result -= values[i] / 7; break;
            default: result = result << 1 | result >> 63; break;
        }
    }
    return result;
}

__attribute__((noinline)) uint64_t shuffle(uint64_t *values, size_t count, uint64_t (*mix)(uint64_t)) {
    uint64_t state = 88172645463325252;
    for (size_t i = count; i > 1; i--) {
        state = mix(state) + i;
        swap(&values[i - 1], &values[state % i]);
    }
    return count > 2 ? state + shuffle(values, count / 2, mix) : state;
}
