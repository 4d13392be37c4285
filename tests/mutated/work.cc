// The same as work.c for what C++ adds: virtual calls, templates, exceptions through several frames. With an argument nothing is
// thrown, so that nobody reads the tables for unwinders.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define APART __attribute__((noinline, noclone))

namespace {

struct Shape {
    virtual ~Shape() = default;
    virtual uint64_t area(uint64_t scale) const = 0;
};

struct Square : Shape {
    uint64_t side;
    explicit Square(uint64_t side) : side(side) {}
    uint64_t area(uint64_t scale) const override { return side * side * scale; }
};

struct Pair : Shape {
    std::unique_ptr<Shape> one, other;
    Pair(std::unique_ptr<Shape> one, std::unique_ptr<Shape> other) : one(std::move(one)), other(std::move(other)) {}
    uint64_t area(uint64_t scale) const override { return one->area(scale) + 3 * other->area(scale + 1); }
};

bool throws;
uint64_t left;

struct Guard {
    uint64_t value;
    APART ~Guard() { left = left * 31 + value; }
};

APART std::unique_ptr<Shape> make(unsigned depth) {
    if (depth == 0) return std::make_unique<Square>(7);
    return std::make_unique<Pair>(make(depth - 1), std::make_unique<Square>(depth));
}

APART uint64_t deep(unsigned n, uint64_t x) {
    Guard guard{n};
    if (n == 0) {
        if (throws && x % 3 == 0) throw std::runtime_error("deep " + std::to_string(x));
        if (throws && x % 3 == 1) throw static_cast<int>(x);
        return x;
    }
    return deep(n - 1, x + n) * 3 + 1;
}

APART uint64_t caught(uint64_t x) {
    try {
        return deep(x % 9, x);
    } catch (const std::exception &e) {
        return std::string(e.what()).size() + 1000;
    } catch (int value) {
        return static_cast<uint64_t>(value) + 2000;
    }
}

template <typename T> APART T total(const std::vector<T> &values) {
    T sum{};
    for (const T &value : values) sum += value;
    return sum;
}

}  // namespace

int main(int argc, char **) {
    throws = argc == 1;
    uint64_t sum = 0;
    for (unsigned i = 0; i < 40; i++) sum = sum * 5 + caught(i);
    std::map<std::string, uint64_t> names;
    for (unsigned i = 0; i < 50; i++) names["name" + std::to_string(i * 37 % 23)] += i;
    for (const auto &[name, count] : names) sum += name.size() * count;
    sum += make(6)->area(2) + total(std::vector<uint64_t>{1, 2, 3, sum}) + static_cast<uint64_t>(total(std::vector<double>{0.5, 1.5}));
    std::printf("%016lx %016lx\n", static_cast<unsigned long>(sum), static_cast<unsigned long>(left));
    return static_cast<int>(sum % 89);
}
