"""Knows how long it spends on lines that call C functions through numpy: products of matrices, which BLAS makes, for two functions, and what
is not BLAS."""
import sys
import time

import numpy

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
# So small that BLAS does not use several threads.
A = numpy.random.default_rng(1).random((60, 60))
NUMBERS = numpy.random.default_rng(2).random(20_000)
SPENT = {}


def until(name, share, work):
    begin = now = time.process_time()
    # How long a product takes depends on the BLAS. The clock is read every 20 ms or so.
    times = 1
    while now - begin < share * SECONDS:
        for _ in range(times):
            work()
        last, now = now, time.process_time()
        times = times * 2 if now - last < 0.01 else times
    SPENT[name] = SPENT.get(name, 0.0) + now - begin


class Model:
    def train(self):
        A @ A  # line: train


def predict():
    numpy.dot(A, A)  # line: predict


def order():
    numpy.sort(NUMBERS)  # line: order


def main():
    model = Model()
    for _ in range(5):
        until("train", 0.10, model.train)
        until("predict", 0.06, predict)
        until("order", 0.04, order)


START = time.process_time()
main()  # line: all
SPENT["all"] = time.process_time() - START
for line, seconds in SPENT.items():
    print("spent", line, seconds)
