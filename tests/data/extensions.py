"""Works in CPython's own functions and in those of its extension modules and their libraries."""

import json
import re
import sqlite3
import sys
import zlib

total = 0
for _ in range(int(sys.argv[1])):
    data = {f"key{n}": [n * 1.5, str(n), None, True] for n in range(200)}
    text = json.dumps(data, sort_keys=True)
    assert json.loads(text) == data
    total += len(re.sub(r"key(\d+)", r"\1\1", text))
    database = sqlite3.connect(":memory:")
    database.execute("create table t(a integer primary key, b text)")
    database.executemany("insert into t values(?, ?)", [(n, str(n * n)) for n in range(300)])
    total += database.execute("select sum(a) from t where b like '1%'").fetchone()[0]
    database.close()
    total += len(zlib.decompress(zlib.compress(text.encode())))
print(total)
