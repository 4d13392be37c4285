// Exceptions that leave functions whose results are wanted, and methods; each call writes a line of its own log.
#include <cstdio>
#include <stdexcept>
#include <string>

#define F __attribute__((noinline, noclone))

static const char *caller = "";

struct Box {
  long size;
  F long grow(int by, bool often) {
    const char *from = caller;
    printf("Box::grow\tby\t%s\t%d\nBox::grow\toften\t%s\t%d\n", from, by, from, often);
    if (by < 0) throw std::runtime_error("negative");
    size += by;
    printf("Box::grow\tretval\t%s\t%ld\n", from, size);
    return size;
  }
};

enum Colour { RED, GREEN = 5, BLUE };

F int paint(Colour colour, const std::string &name) {
  const char *from = caller;
  printf("paint\tcolour\t%s\t%d\npaint\tname\t%s\t%s\n", from, colour, from, name.c_str());
  if (colour == BLUE) throw 7;
  printf("paint\tretval\t%s\t%d\n", from, colour * 2);
  return colour * 2;
}

F int outer(Box &box, int n) {
  try {
    caller = "outer";
    long got = box.grow(n % 4 - 1, n & 1);
    caller = "outer";
    return static_cast<int>(got) + paint(n % 3 == 0 ? RED : n % 3 == 1 ? GREEN : BLUE, n % 2 ? "odd" : "a name that is longer than most");
  } catch (const std::runtime_error &) {
    return 1;
  } catch (int) {
    return 2;
  }
}

int main() {
  Box box{0};
  int sum = 0;
  for (int n = 0; n < 300; n++) sum += outer(box, n);
  fprintf(stderr, "%d\n", sum);
}
