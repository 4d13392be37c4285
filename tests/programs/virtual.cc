// Virtual calls, templates and lambdas through pointers.
//# arc: main -> run 2
//# arc: run -> _ZNK6Square4areaEv 100
//# arc: run -> _ZNK6Circle4areaEv 100
//# arc: main -> _Z5twiceIiET_S0_ 10
//# arc: main -> _Z5twiceIdET_S0_ 20
#include "test.h"
struct Shape { virtual int area() const = 0; };
struct Square : Shape { OPAQUE int area() const override; };
struct Circle : Shape { OPAQUE int area() const override; };
int Square::area() const { BARRIER(); return 4; }
int Circle::area() const { BARRIER(); return 3; }
template <class T> OPAQUE T twice(T x) { BARRIER(); return x + x; }
extern "C" OPAQUE int run(const Shape *s) { int t = 0; for (int i = 0; i < 100; i++) t += s->area(); return t; }
int main() {
    static Square square; static Circle circle;
    CHECK(run(&square) == 400 && run(&circle) == 300);
    for (int i = 0; i < 10; i++) CHECK(twice(i) == 2 * i);
    for (int i = 0; i < 20; i++) CHECK(twice(i + 0.5) == 2 * i + 1);
    return 0;
}
