# Calls, dictionaries, JSON and regular expressions: work of a second or two.
import json
import re


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


print(fib(30))
counts = {}
for i in range(2000000):
    key = str(i % 5000)
    counts[key] = counts.get(key, 0) + i
print(sum(counts.values()))
print(len(json.dumps([{"a": i, "b": str(i)} for i in range(200000)])))
print(len(re.findall("[0-9]+7", " ".join(map(str, range(300000))))))
