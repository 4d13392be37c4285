#!/bin/sh
# redis.sh [ROUNDS [REQUESTS]]: what traces of a server cost. Runs redis-server under redis-benchmark in several ways by turns, ROUNDS
# times (5), with so many REQUESTS of each of four kinds (50000), and prints a table: medians, and all rounds' requests a second.
# Installs nothing: without redis it prints SKIPPED and ends with status 77. Fails if a trace that lacks nothing has not as many
# calls as are counted, if the server does not end by SIGTERM with status 0, or if requests fail.
#
#   GPROFINJECT=PATH   the command
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
rounds=${1:-5}
requests=${2:-50000}
kinds=4 # of requests
for tool in redis-server redis-benchmark redis-cli; do
    command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool"; exit 77; }
done
command=$(realpath "${GPROFINJECT:-$here/../target/release/gprofinject}")
[ -x "$command" ] || die "no gprofinject command: build it, or set GPROFINJECT"

work=$(mktemp -d)
server=
profiler=
clean_up() {
    # The server first: gprofinject ends with it. A server that has just begun has no file with its number yet.
    [ -n "$server" ] || server=$(cat "$work/pid" 2>/dev/null || true)
    for pid in $server $profiler; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Prints a port on which nobody listens.
free_port() {
    port=$((20000 + $$ % 20000))
    while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$port") "; do
        port=$((port + 1))
    done
    echo "$port"
}

cpu() { # PID: its CPU time in microseconds
    # The name, which may have spaces, ends with the last parenthesis.
    sed 's/.*) //' "/proc/$1/stat" | awk -v hz="$(getconf CLK_TCK)" '{ printf "%d\n", ($12 + $13) * 1000000 / hz }'
}
note() { echo "$2" >>"$work/$way.$1"; } # FIGURE VALUE
# The file of --stats has a field in each line.
of_run() { sed -n "s/^  \"$1\": \([0-9]*\).*/\1/p" "$work/stats.json"; }
of_trace() { sed -n "/^  \"trace\"/,/^  }/s/^    \"$1\": \([0-9]*\).*/\1/p" "$work/stats.json"; }

# Runs the server in one way, and notes what it costs.
measure() { # WAY OPTIONS...
    way=$1
    shift
    port=$(free_port)
    rm -f "$work/pid" "$work"/stats.json "$work"/run.*
    set -- "$@" -- redis-server --bind 127.0.0.1 --port "$port" --pidfile "$work/pid" --dir "$work" --save '' --loglevel warning
    if [ "$way" = plain ]; then
        shift # the --
        "$@" >"$work/log" 2>&1 &
    else
        XDG_CACHE_HOME=$work/cache "$command" -q -o "$work/run.gmon" --stats "$work/stats.json" "$@" >"$work/log" 2>&1 &
    fi
    profiler=$!
    for _ in $(seq 600); do
        kill -0 "$profiler" 2>/dev/null || die "redis-server did not begin ($way): $(cat "$work/log")"
        [ "$(redis-cli -p "$port" ping 2>/dev/null)" = PONG ] && break
        sleep 0.05
    done
    server=$(cat "$work/pid") || die "redis-server does not answer ($way): $(cat "$work/log")"

    begun=$(cpu "$server")
    own_begun=$(cpu "$profiler")
    redis-benchmark -p "$port" -q -c 20 -n "$requests" -t set,get,lpush,lpop --csv >"$work/answer"
    rate=$(tr -d '"' <"$work/answer" | awk -F, '$2 + 0 > 0 { sum += 1 / $2; n++ } END { printf "%d %d\n", n, n ? n / sum : 0 }')
    [ "${rate% *}" = $kinds ] || die "requests failed ($way): $(cat "$work/answer")"
    note rate "${rate#* }"
    note cpu "$(($(cpu "$server") - begun))"
    if [ "$way" != plain ]; then
        note own "$(($(cpu "$profiler") - own_begun))"
        note memory "$(awk '$1 == "VmHWM:" { print $2 }' "/proc/$profiler/status")"
    fi
    kill -TERM "$server"
    status=0
    wait "$profiler" || status=$?
    server=
    profiler=
    [ $status = 0 ] || die "the server ended with status $status ($way): $(cat "$work/log")"
    [ -f "$work/run.trace" ] || return 0

    note bytes "$(wc -c <"$work/run.trace")"
    note events "$(of_trace events)"
    note lost "$(of_trace lost)"
    note counted "$(of_run calls)"
    note traced "$(of_trace calls)"
    [ "$(of_trace lost)" != 0 ] || [ "$(of_run calls)" = "$(of_trace calls)" ] ||
        die "$(of_run calls) calls are counted, and $(of_trace calls) are in the trace, which lacks none ($way)"
}

ways="plain times trace drop-new drop-old last-64"
for _ in $(seq "$rounds"); do
    measure plain
    measure times --times
    measure trace --trace "$work/run.trace"
    measure drop-new --trace "$work/run.trace" --trace-full drop-new
    measure drop-old --trace "$work/run.trace" --trace-full drop-old
    measure last-64 --trace "$work/run.trace" --trace-size 64
done

median() { sort -n "$work/$way.$1" 2>/dev/null | awk '{ a[NR] = $1 } END { if (NR) print a[int((NR + 1) / 2)] }'; }
range() { sort -n "$work/$way.$1" | awk 'NR == 1 { least = $1 } { most = $1 } END { print (least == most ? least : least " to " most) }'; }
scaled() { # FIGURE DIVISOR FORMAT: nothing if there is no such figure
    value=$(median "$1")
    [ -z "$value" ] || awk -v value="$value" -v divisor="$2" -v format="$3" 'BEGIN { printf format, value / divisor }'
}
all=$((kinds * requests))
echo "| way | requests/s | of all rounds | server's CPU, us a request | gprofinject's | gprofinject's memory, MiB | file, MB | events, million | lost | calls in the trace | calls counted |"
echo "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
for way in $ways; do
    printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$way" "$(median rate)" "$(range rate)" \
        "$(scaled cpu $all %.2f)" "$(scaled own $all %.2f)" "$(scaled memory 1024 %.0f)" "$(scaled bytes 1000000 %.1f)" \
        "$(scaled events 1000000 %.1f)" "$([ ! -f "$work/$way.lost" ] || range lost)" "$(median traced)" "$(median counted)"
done
