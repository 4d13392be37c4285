import std/[algorithm, threadpool]
var c: int
proc fib(n: int): int {.noinline.} =
  inc c
  if n < 2: n else: fib(n-1) + fib(n-2)
proc deep(n: int): int {.noinline.} =
  if n == 0: raise newException(ValueError, "found")
  deep(n-1) + 1
iterator it(n: int): int {.closure.} =
  for i in 0..<n: yield i
var caught = 0
for i in 1..200:
  try: discard deep(i)
  except ValueError: inc caught
let r = fib(20)
var s = @[3,1,2]; s.sort(proc(a,b: int): int = cmp(a,b))
var t = 0
for x in it(10): t += x
echo r, " fib=", c, " ", caught, " ", s, " ", t
