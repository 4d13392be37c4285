#!/bin/bash
# shares.sh [RUNS]: compares the shares of functions under gprofinject, with hooks, with those that perf finds without
# hooks. Prints the table of docs/benchmarks.md, "Shares".
#
# Each program runs RUNS times (3 by default) under `perf record -e cpu-clock`, and as often under gprofinject with each
# kind of hooks. The shares of a file's functions are their parts of all samples in that file's functions; perf's samples
# in the kernel count where the kernel was called, as gprofinject's do. For the ten functions that perf finds most often
# (on average), the table has the greatest difference between the averages, in percentage points.
#
# Set GPROFINJECT for another build, and ONLY for some of the programs. The folder with all shares is named at the end.
set -euo pipefail
runs=${1:-3}
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../target}
if [ -z "${GPROFINJECT:-}" ]; then
    (cd "$here/.." && cargo build -q --release)
    GPROFINJECT=$(realpath "$target/release/gprofinject")
fi
for tool in perf gprof nm; do
    command -v $tool >/dev/null || { echo "shares.sh: needs $tool" >&2; exit 1; }
done
corpus=${GPROFINJECT_CORPUS:-$target/corpus}
sh "$here/corpus.sh" "$corpus" O2
corpus=$(realpath "$corpus")
work=$(mktemp -d)
cd "$work"

# Text that compresses as text does.
awk 'BEGIN { srand(1); for (i = 0; i < 5000000; i++) printf "%s%d ", substr("thequickbrownfoxjumps", rand() * 15, 6), rand() * 400 }' >data
cat >work.py <<'PYTHON'
import re
def words(n):
    count = {}
    for i in range(n):
        word = "w%d" % (i * 7919 % 1013)
        count[word] = count.get(word, 0) + len(re.sub("[13579]", "", word))
    return sorted(count.items(), key=lambda pair: (-pair[1], pair[0]))
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
for _ in range(20): words(200000); fib(25)
PYTHON

cat >work.js <<'JAVASCRIPT'
let sum = 0;
for (let round = 0; round < 60; round++) {
    const rows = Array.from({ length: 3000 }, (_, i) => ({ id: i, name: "n" + (i * 7 % 13), tags: ["a", null, i / 3] }));
    const again = JSON.parse(JSON.stringify(rows)).sort((a, b) => a.name < b.name ? -1 : 1);
    sum += again.map(row => row.name.replace(/[0-9]/g, "x").length).reduce((a, b) => a + b, 0);
}
console.log(sum);
JAVASCRIPT

# Strips what compilers add to the names of parts and clones, which gprof shows under the function's name.
plain='{ if ($2 !~ /@plt/) sub(/@.*/, "", $2); sub(/\.(cold|part|isra|constprop|llvm|lto_priv)[.0-9a-z_]*$/, "", $2); sub(/\.[0-9]+$/, "", $2); print }'

# Turns lines "SAMPLES NAME" into shares of the functions that the file `names` has, the greatest first.
shares() { # NAMES
    awk "$plain" | awk -v names="$1" '
        BEGIN { while ((getline name < names) > 0) is_own[name] = 1 }
        # Stubs of the procedure linkage table are no functions.
        $2 in is_own && $2 !~ /@plt/ { of[$2] += $1; all += $1 }
        END { for (name in of) printf "%.3f %s\n", 100 * of[name] / all, name }' | sort -rn
}

# The average of several files of shares.
average() {
    awk -v runs="$runs" '{ of[$2] += $1 } END { for (name in of) printf "%.3f %s\n", of[name] / runs, name }' "$@" | sort -rn
}

compare() { # NAME FILE COMMAND...
    local name=$1 file=$2 hooks run row left
    shift 2
    [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $name "* ]] || return 0
    mkdir "$name"
    nm -C "$file" >/dev/null
    nm "$file" | awk '$2 ~ /[tTwWiI]/ { print "0 " $3 }' | awk "$plain" | awk '{ print $2 }' | sort -u >"$name/names"
    for run in $(seq "$runs"); do
        # Only the first address of each call chain is used: the one at which the program was interrupted, or called the
        # kernel.
        perf record -q -F 1000 -e cpu-clock -g --user-callchains -o "$name/perf.data" -- "$@" >/dev/null 2>&1 </dev/null
        perf script -i "$name/perf.data" -F ip,sym,dso 2>/dev/null |
            awk -v file="$(basename "$file")" '
                NF == 0 { is_next = 1; next }
                is_next { is_next = 0; n = split($NF, path, "/"); sub(/\)$/, "", path[n]); if (path[n] == file) print 1, $2 }
            ' | shares "$name/names" >"$name/perf.$run"
        for hooks in both entry; do
            local out=$name/$hooks.$run.out
            "$GPROFINJECT" -q --hooks "$hooks" --stats "$name/$hooks.$run.json" -o "$out" "$@" >/dev/null 2>&1 </dev/null
            # The recording has the functions that gprof would leave out in the program's own view.
            "$(dirname "$GPROFINJECT")/gmon" gprof "${out%.out}.pb.gz" -b -p 2>/dev/null |
                awk '$1 ~ /^[0-9.]+$/ { print $1, $NF }' | shares "$name/names" >"$name/$hooks.$run"
        done
    done
    average "$name"/perf.[0-9]* >"$name/perf"
    for hooks in both entry; do
        average $(ls "$name"/$hooks.[0-9]* | grep -E '\.[0-9]+$') >"$name/$hooks"
        # Files of before 2026-12 have no such key.
        left=$(cat "$name"/$hooks.*.json | awk -F'[:,]' '/"own_percent"/ { sum += $2; n++ } END { printf "%.0f", n ? sum / n : 0 }')
        row=$(head -n 10 "$name/perf" | awk -v ours="$name/$hooks" '
            BEGIN { while ((getline line < ours) > 0) { split(line, part, " "); of[part[2]] = part[1] } }
            { d = of[$2] - $1; if (d < 0) d = -d; if (d >= most) { most = d; who = $2; theirs = $1; found = of[$2] } }
            END { printf "%.1f | `%s` | %.1f | %.1f", most, who, theirs, found }')
        echo "| $name | $hooks | $left | $row |"
    done
}

echo "| program | hooks | left out, % | greatest difference, points | function | perf, % | gprofinject, % |"
echo "|---|---|---|---|---|---|---|"
compare lua "$corpus/lua-O2" "$corpus/lua-O2" "$here/data/bench.lua" 1000
compare speedtest1 "$corpus/speedtest1-O2" "$corpus/speedtest1-O2" --size 300 :memory:
compare bzip2 "$corpus/bzip2-O2" "$corpus/bzip2-O2" -kc data
if command -v python3 >/dev/null; then
    python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
    library=$(ldd "$python" | awk '/libpython/ { print $3 }')
    compare python3 "$(realpath "${library:-$python}")" "$python" work.py
fi
if command -v node >/dev/null; then
    # Without its just-in-time compilers, the time is in functions of the file. Its runtime gets entry hooks only.
    node=$(realpath "$(command -v node)")
    compare node "$node" "$node" --jitless work.js
fi
echo "All shares: $work" >&2
