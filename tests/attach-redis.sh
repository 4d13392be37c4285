#!/bin/sh
# attach-redis.sh DIR [ROUNDS]: the cost of attaching to a server. redis-server, built by stress.sh from its
# Debian source package, under redis-benchmark: requests a second, and the server's own CPU time for each, before, attached with both kinds of hooks, paused,
# resumed, left, attached with entry hooks, and left again; in turn, ROUNDS times (5). Prints the medians, and how
# long its threads stood still.
#
#   GPROFINJECT=PATH   the command
set -u

here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
[ $# -ge 1 ] || die "usage: attach-redis.sh DIR [ROUNDS]"
mkdir -p "$1" && dir=$(cd "$1" && pwd) || exit 1
rounds=${2:-5}
command=${GPROFINJECT:-$here/../target/release/gprofinject}
command=$(realpath "$command") && [ -x "$command" ] || die "no gprofinject command: build it, or set GPROFINJECT"
"$here/stress.sh" "$dir" build-redis >/dev/null
[ -x "$dir/redis-server" ] || die "SKIPPED: redis could not be built"

socket=$dir/attach.socket
rm -f "$socket" "$dir"/attach-*.rate "$dir"/attach-*.cpu "$dir/attach.log"
"$dir/redis-server" --port 0 --unixsocket "$socket" --save '' --loglevel warning >"$dir/redis-server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done

cpu() { cut -d ' ' -f 14,15 "/proc/$server/stat" | tr ' ' '+' | bc; } # in clock ticks

measure() { # STATE
    begun=$(cpu)
    "$dir/redis-benchmark" -s "$socket" -q -c 20 -P 8 -n 400000 -t set,get,lpush,lpop --csv |
        tr -d '"' | awk -F, '$2 + 0 > 0 { sum += 1 / $2; n++ } END { printf "%d\n", n / sum }' >>"$dir/attach-$1.rate"
    echo "scale=3; ($(cpu) - $begun) * 1000000 / $(getconf CLK_TCK) / (4 * 400000)" | bc >>"$dir/attach-$1.cpu"
}
attach() { # HOOKS
    "$command" -v "--hooks=$1" -o "$dir/attach.gmon" --pid $server 2>>"$dir/attach.log" &
    profiler=$!
    for _ in $(seq 200); do
        grep -q "\.region" "/proc/$server/maps" && [ "$(tail -n 1 "$dir/attach.log" | grep -c 'attached to')" = 1 ] && break
        sleep 0.02
    done
}
leave() { kill -INT $profiler; wait $profiler || die "gprofinject failed: see $dir/attach.log"; }

for _ in $(seq "$rounds"); do
    measure before
    attach both
    measure both
    "$command" --pid $server --pause 2>>"$dir/attach.log"
    measure paused
    "$command" --pid $server --resume 2>>"$dir/attach.log"
    measure resumed
    leave
    measure left
    attach entry
    measure entry
    leave
    measure left-again
done
kill $server
wait $server 2>/dev/null
trap - EXIT

median() { sort -n "$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
base=$(median "$dir/attach-before.rate")
base_cpu=$(median "$dir/attach-before.cpu")
echo "| state | requests/s | of before | CPU time of a request, us | of before |"
echo "|---|---:|---:|---:|---:|"
for state in before both paused resumed left entry left-again; do
    rate=$(median "$dir/attach-$state.rate")
    cpu=$(median "$dir/attach-$state.cpu")
    echo "| $state | $rate | $(echo "scale=2; $rate / $base" | bc) | $cpu | $(echo "scale=2; $cpu / $base_cpu" | bc) |"
done
echo
echo "Threads stood still, in ms (attaching and leaving, longest last):"
sed -n 's/.*stood still for \([0-9.]*\) ms.*/\1/p' "$dir/attach.log" | sort -n | tr '\n' ' '
echo
grep -h hooked "$dir/attach.log" | tail -n 1
