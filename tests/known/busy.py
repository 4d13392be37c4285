"""Knows how long it spends on some of its lines, as lines.py does: in calls that take a few milliseconds each. Between two of them, it asks the
kernel for its CPU time."""
import sys
import time

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
NUMBERS = [i * 7919 % 10_007 for i in range(10_000)]
SPENT = {}


def until(name, share, work):
    begin = time.process_time()
    while (now := time.process_time()) - begin < share * SECONDS:
        work()
    SPENT[name] = SPENT.get(name, 0.0) + now - begin


def add():
    sum(range(60_000))  # line: add


def order():
    sorted(NUMBERS)  # line: order


def main():
    for _ in range(5):
        until("add", 0.14, add)
        until("order", 0.06, order)


START = time.process_time()
main()  # line: all
SPENT["all"] = time.process_time() - START
for line, seconds in SPENT.items():
    print("spent", line, seconds)
