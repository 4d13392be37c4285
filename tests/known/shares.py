"""Knows how long it spends in its functions: prints the CPU time with each of them on the stack, in microseconds."""
import re
import sys
import threading
import time

SPENT = {}
LOCK = threading.Lock()
UNIT = float(sys.argv[1]) if len(sys.argv) > 1 else 0.05


def spin(units, *names):
    """Spins for some units of CPU time in these functions."""
    start = time.thread_time()
    end = start + units * UNIT
    while time.thread_time() < end:
        for _ in range(500):
            pass
    spent = time.thread_time() - start
    with LOCK:
        for name in names + ("spin",):
            SPENT[name] = SPENT.get(name, 0) + spent


def half():
    spin(5, "half", "proportions")


class Methods:
    def third(self):
        spin(3, "third", "proportions")


def proportions():
    half()
    Methods().third()
    (lambda: spin(2, "<lambda>", "proportions"))()


def recursion(depth):
    if depth:
        return recursion(depth - 1)
    spin(3, "recursion")


def deep(depth):
    """Its stack is longer than what the kernel copies."""
    if depth:
        return deep(depth - 1) + 1
    spin(3, "deep")
    return 0


def numbers():
    for number in range(3):
        spin(1, "numbers", "generators")
        yield number


def generators():
    return sum(number for number in numbers())


class Wait:
    def __await__(self):
        spin(1, "__await__", "coroutine")
        yield


async def coroutine():
    await Wait()
    spin(1, "coroutine")


def coroutines():
    running = coroutine()
    try:
        while True:
            running.send(None)
    except StopIteration:
        pass


def key(number):
    spin(1, "key", "by_key")
    return -number


def by_key():
    return sorted([1, 2, 3], key=key)


def replacement(match):
    spin(1, "replacement", "by_pattern")
    return match[0]


def by_pattern():
    return re.sub("a", replacement, "abaca")


def fails():
    spin(1, "fails", "exceptions")
    raise ValueError


def exceptions():
    try:
        fails()
    except ValueError:
        spin(1, "exceptions")


def run_text():
    names = {"spin": spin}
    exec(compile("def of_text():\n    spin(2, 'of_text', 'run_text')\nof_text()\n", "<text>", "exec"), names)


def in_thread():
    spin(3, "in_thread")


def main():
    thread = threading.Thread(target=in_thread)
    thread.start()
    proportions()
    recursion(20)
    deep(300)
    generators()
    coroutines()
    by_key()
    by_pattern()
    exceptions()
    run_text()
    thread.join()


main()
for name, spent in SPENT.items():
    print("spent", name, round(spent * 1e6))
print("all", round(time.process_time() * 1e6))
