#!/bin/bash
# times.sh [RUNS]: compares measured times with known ones, and prints two tables.
#
# The first one is of the programs in tests/known, which measure themselves how long they spin: the times that they know, the
# measured ones with and without gprofinject's overhead, and the errors. Each program runs RUNS times (5 by default), and each
# row is of the run with the median of its errors; then come the least error of all runs, and what the run tells as the error
# of a call.
#
# The second one compares measured inclusive times with the numbers of instructions that callgrind counts, for a program whose
# instructions all take equally long: the shares of the whole should be equal.
#
# Set ONLY for some of the programs. A busy machine changes the results, those of short functions above all.
set -euo pipefail
runs=${1:-5}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
cargo build -q --release
cargo build -q --release -p gprofinject-tests -F arc-check --bins
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

is_wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }

known() { # NAME ARGUMENTS...
    local source name=$1
    is_wanted "$name" || return 0
    shift
    source=$(ls "tests/known/$name".*)
    if [ ! -e "$work/$name" ]; then
        local tails=-fno-optimize-sibling-calls
        [ "$name" != tails ] || tails=-foptimize-sibling-calls
        case $source in
        *.cc) g++ -O2 -pthread $tails -o "$work/$name" "$source" ;;
        *) gcc -O2 -pthread $tails -o "$work/$name" "$source" ;;
        esac
    fi
    "$target/release/known-times" --runs "$runs" "$(echo "$name" "$@")" "$work/$name" "$@"
}

echo "| program | what | calls | expected, ns | with overhead, ns | measured, ns | error, % | ns a call | least | said |"
echo "|---|---|---|---|---|---|---|---|---|---|"
known short
known latency
known callers
known recursion
known jumps
known exceptions
known waiting
known durations
known tails
known callbacks
known threads
known cancelled cancel
known cancelled raw
known signals
known signals alternate
known ends exit
known forks
known coroutines apart
known coroutines assembly symmetric adjacent

is_wanted uniform && command -v callgrind_annotate >/dev/null || exit 0
gcc -O2 -o "$work/uniform" tests/known/uniform.c
callgrind() {
    valgrind --tool=callgrind --callgrind-out-file="$work/callgrind" "$work/uniform" >/dev/null 2>&1
    callgrind_annotate --inclusive=yes --threshold=100 "$work/callgrind" |
        awk '/uniform\]/ && match($0, /:[^ :]+ \[/) { name = substr($0, RSTART + 1, RLENGTH - 3); gsub(",", "", $1); print name, $1 }'
}
measured() {
    "$target/release/gprofinject" -q --times -o "$work/gmon.out" "$work/uniform" >/dev/null
    "$target/release/gmon" flat --json "$work/gmon.pb.gz" >"$work/json"
    python3 - "$work/json" <<'PYTHON'
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    print(row["name"], row["inclusive_ns"])
PYTHON
}
callgrind >"$work/counted"
for _ in $(seq "$runs"); do measured; done >"$work/measured"
echo
echo "| function | inclusive, instructions | share, % | inclusive, ns | share, % |"
echo "|---|---|---|---|---|"
# Of several runs, the least time.
awk -v counted="$work/counted" '
    { if (!($1 in ns) || $2 < ns[$1]) ns[$1] = $2 }
    END {
        while ((getline line < counted) > 0) { split(line, part, " "); of[part[1]] = part[2] }
        for (name in ns) if (name in of && of[name] > of["main"] / 1000)
            printf "| %s | %d | %.2f | %d | %.2f |\n", name, of[name], 100 * of[name] / of["main"], ns[name], 100 * ns[name] / ns["main"]
    }' "$work/measured" | sort -t'|' -k3 -rn
