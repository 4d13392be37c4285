#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

template <typename T>
T add(T a, T b)
{
    T sum = a + b;
    return sum;
}

template <typename T>
struct Stack {
    std::vector<T> values;
    void push(T value)
    {
        values.push_back(value);
    }
    T pop()
    {
        if (values.empty())
            throw std::runtime_error("empty");
        T value = values.back();
        values.pop_back();
        return value;
    }
};

struct Noisy {
    static int alive;
    Noisy()
    {
        alive++;
    }
    ~Noisy()
    {
        alive--;
    }
};

int Noisy::alive = 0;

struct Shape {
    virtual ~Shape() {}
    virtual int area() const = 0;
};

struct Square : Shape {
    int side;
    explicit Square(int side) : side(side) {}
    int area() const override
    {
        return side * side;
    }
};

static int risky(int i)
{
    Noisy noisy;
    if (i % 3 == 0)
        throw i;
    return i;
}

static int caught(int i)
{
    try {
        return risky(i);
    } catch (int value) {
        return -value;
    }
}

static std::map<std::string, int> words{{"one", 1}, {"two", 2}};

int main()
{
    int sum = add(1, 2);
    sum += static_cast<int>(add(1.5, 2.5));
    sum += static_cast<int>(add<long>(3, 4));
    sum += add(5, 6);
    for (int i = 0; i < 10; i++)
        sum += caught(i);
    Stack<int> stack;
    Stack<char> letters;
    for (int i = 0; i < 4; i++) {
        stack.push(i);
        if (i > 1)
            letters.push('a');
    }
    try {
        while (true)
            sum += stack.pop();
    } catch (const std::exception &error) {
        sum += 100;
    }
    sum += letters.pop();
    Square square(7);
    const Shape &shape = square;
    sum += shape.area();
    auto twice = [](int x) {
        return 2 * x;
    };
    for (const auto &word : words)
        sum += twice(word.second);
    std::printf("%d %d\n", sum, Noisy::alive);
    return 0;
}
