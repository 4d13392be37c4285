// Functions and methods whose arguments gdb prints.
#include <string>
#include <vector>

#define KEEP __attribute__((noinline))
volatile long sink;

namespace shapes {
enum class Kind : short { Circle = 1, Square = -2 };
class Base {
public:
    explicit KEEP Base(int size) : size_(size) { sink = size; }
    virtual KEEP ~Base() { sink = size_; }
    virtual KEEP int area(int factor, bool round) const { sink = size_ * factor + round; return sink; }
    KEEP int grow(long by, double ratio) { size_ += by; sink = size_ * ratio; return sink; }
    static KEEP int limit(unsigned char n) { sink = n; return n; }
protected:
    int size_;
};
class Derived : public Base {
public:
    KEEP Derived(int size, const char *name) : Base(size), name_(name) { sink = size; }
    KEEP int area(int factor, bool round) const override { sink = factor + round + name_.size(); return sink; }
private:
    std::string name_;
};
}
template<class T> KEEP T largest(T a, T b, int n) { sink = n; return a < b ? b : a; }
KEEP long references(int &a, const long &b, int &&c, std::vector<int> &v, int n) { sink = a + b + c + v.size() + n; return sink; }
KEEP std::string join(const std::string &a, int n) { sink = n; return a + a; }
KEEP std::vector<int> vector(int a, short b) { sink = a; return {a, b}; }
KEEP int kinds(shapes::Kind k, char16_t c, char32_t d, bool b, decltype(nullptr), int n) { sink = (int)k + c + d + b + n; return sink; }
KEEP int by_value(std::string s, int n) { sink = s.size() + n; return sink; }
KEEP bool operator<(const shapes::Base &a, int n) { sink = n; return a.area(n, false) > n; }

int main(int argc, char **) {
    shapes::Derived derived(3, "square");
    shapes::Base *base = &derived;
    base->area(argc + 1, true);
    shapes::Base(argc + 4).area(5, false);
    derived.grow(-6, 0.5);
    shapes::Base::limit(250);
    largest<double>(1.5, argc, 3);
    largest<short>(-1, argc, 4);
    int a = 1;
    long b = 2;
    std::vector<int> v(5);
    references(a, b, 3, v, 7);
    join("joined", 8);
    vector(9, -10);
    kinds(shapes::Kind::Square, u'\u00e9', U'\U0001f600', true, nullptr, 11);
    by_value("value", 12);
    (void)(derived < 13);
    auto lambda = [&](int x, double y) __attribute__((noinline)) { sink = a + x + y; return sink; };
    lambda(14, 1.25);
    return 0;
}
