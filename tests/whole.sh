#!/bin/bash
# Prints a table (docs/internals/testing.md, "The whole process"): the view of the whole process against callgrind, for installed
# programs, with each of `--libs auto`, `--libs all` and both kinds of hooks. Programs that are not installed are left out.
# What differs, and which functions are left out and why, is in the files that the last line names.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
cargo build -q --release -p gprofinject-tests -F arc-check
check=$(realpath "${CARGO_TARGET_DIR:-target}/release/arc-check")
work=$(mktemp -d)
cd "$work"

for i in $(seq 0 399); do echo "line $i of $((i * i % 97))"; done >text
echo '<RCC><qresource prefix="/a"><file>text</file></qresource></RCC>' >list.qrc
cat >script.lua <<'LUA'
package.cpath = '/usr/lib/x86_64-linux-gnu/lua/5.4/?.so'
local j = require 'cjson'
local s = 0
for i = 1, 30 do local t = j.encode({i, i * 2, {x = i}}); s = s + #t + j.decode(t)[1] end
print(s)
LUA
cat >script.pl <<'PERL'
use List::Util qw(sum reduce); use POSIX qw(floor); use Data::Dumper;
use Storable qw(freeze thaw); use Digest::SHA qw(sha256_hex); $Data::Dumper::Sortkeys = 1;
my $s = sum(map { floor($_ * 1.5) } 1 .. 50); my $d = { a => [1 .. 5], b => 'x' };
for (1 .. 10) { $s += length(Dumper(thaw(freeze($d)))) + length(sha256_hex($_ x 100)); }
$s += reduce { $a + $b } 1 .. 20; print "$s ", join(',', sort { $a <=> $b } map { $_ * 7 % 13 } 1 .. 20);
PERL
cat >script.py <<'PYTHON'
import json, re, sqlite3
rows = [{"id": i, "name": "n%d" % (i * 7 % 13), "tags": ["a", None, True, i / 3]} for i in range(40)]
text = json.dumps(rows, sort_keys=True)
found = re.findall(r'"(\w+)":\s*("[^"]*"|[-\d.e]+|\[)', text)
db = sqlite3.connect(":memory:")
db.execute("create table t(id integer primary key, name text, score real)")
db.executemany("insert into t(name, score) values (?, ?)", [(r["name"], r["tags"][3]) for r in json.loads(text)])
print(len(text), len(found), db.execute("select name, count(*), sum(score) from t group by name order by 2, 1").fetchall())
PYTHON
if command -v git >/dev/null; then
    export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE='2026-01-01 00:00' GIT_COMMITTER_DATE='2026-01-01 00:00'
    git init -q repository
    for i in 1 2 3 4 5; do
        head -n $((i * 20)) text >"repository/file$i"
        git -C repository add .
        git -C repository -c user.name=a -c user.email=a@b commit -q -m "a commit"
    done
fi

# row RUNS NAME PROGRAM ARGS...
row() {
    local runs=$1 name=$2 libs hooks result
    shift 2
    [ -e "$1" ] || return 0
    for libs in auto all; do
        for hooks in both entry; do
            "$check" --runs "$runs" --libs "$libs" --hooks "$hooks" "$@" >"$name-$libs-$hooks" 2>&1 || true
            result=$(tail -n 1 "$name-$libs-$hooks")
            sed -E "s/^[^:]*: ([0-9]+) modules, ([0-9]+) functions, ([0-9]+) arcs .*\), ([0-9]+) wrong counts, ([0-9]+) wrong arcs, ([0-9]+) .*/| $name | $libs | $hooks | \1 | \2 | \3 | \4 + \5 | \6 |/" <<<"$result"
        done
    done
}

echo '| program | `--libs` | hooks | modules | functions | arcs | wrong counts + arcs | left out |'
echo '|---|---|---|---|---|---|---|---|'
row 3 xz /usr/bin/xz -1 -T1 -c text
row 3 factor /usr/bin/factor 1000000000000000000000000000057
row 3 git /usr/bin/git -C repository log --stat
row 3 openssl /usr/bin/openssl dgst -sha256 text
row 3 rcc /usr/lib/qt5/bin/rcc list.qrc
row 12 lua5.4 /usr/bin/lua5.4 script.lua
row 3 perl /usr/bin/perl script.pl
row 3 python3 /usr/bin/python3 -S -E script.py
echo "Details: $work" >&2
