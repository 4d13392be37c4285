"""Knows how long it spends on some of its lines: prints the CPU time with each of them on the stack, in microseconds."""
import time

SPENT = {}
ROUNDS = 40
NUMBERS = [i * 7919 % 100003 for i in range(60000)]


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(500):
            pass


def recursion(depth):
    return recursion(depth - 1) if depth > 0 else spin(0.006)  # line: recursion


def pause():
    spin(
        0.004)


def generated():
    for _ in range(3):
        spin(0.003)  # line: generator
        yield


def spent(name, start):
    now = time.thread_time()
    SPENT[name] = SPENT.get(name, 0) + now - start
    return time.thread_time()


def work():
    start = time.thread_time()
    for _ in range(ROUNDS):
        sum(range(400000))  # line: sum
        start = spent("sum", start)
        sorted(NUMBERS)  # line: sorted
        start = spent("sorted", start)
        [recursion(i) for i in (3, 20)]  # line: comprehension
        start = spent("comprehension", start)
        pause(); pause()  # line: pauses
        start = spent("pauses", start)
        (lambda: [pause() for _ in (1, 2)])()  # line: nested
        start = spent("nested", start)
        for _ in generated():
            pass
        start = spent("generator", start)
        try:
            raise ValueError
        except ValueError:
            spin(0.005)  # line: handler
        start = spent("handler", start)


START = time.thread_time()
work()  # line: all
spent("all", START)
SPENT["recursion"] = SPENT["comprehension"]
for name, seconds in SPENT.items():
    print("spent", name, round(seconds * 1e6))
