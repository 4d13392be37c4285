import std.stdio, core.thread, std.algorithm, core.memory;
__gshared int c;
pragma(inline,false) extern(C) int fib(int n) { c++; return n < 2 ? n : fib(n-1) + fib(n-2); }
pragma(inline,false) int deep(int n) { if (n == 0) throw new Exception("found"); return deep(n-1) + 1; }
void main() {
  int caught; foreach (i; 1..200) { try deep(i); catch (Exception e) caught++; }
  auto r = fib(20); int y;
  auto f = new Fiber({ foreach (i; 0..10) { y += i; Fiber.yield(); } });
  while (f.state != Fiber.State.TERM) f.call();
  auto t = new Thread({ foreach (i; 0..20000) { auto a = new int[10]; y += cast(int)a.length % 2; } }); t.start(); t.join(); GC.collect();
  writeln(r, " fib=", c, " ", caught, " ", y);
}
