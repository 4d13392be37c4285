#!/bin/sh
# stress.sh DIR [CASE...]: real programs for minutes, alone and under gprofinject in both hook modes; what
# they print must be the same. Prints a table.
#
# zstd and redis come from the Debian source packages of this machine's own release, rayon from crates.io;
# each is built plain at -O2, with symbols. gcc, git and python3 are the machine's own (mostly stripped:
# their children and their exec are what is tested). What a machine does not have is left out, with a line
# that says so. DIR keeps what was built.
#
#   GPROFINJECT=PATH   the command            STRESS_SCALE=N   N times the work (1 is a minute or two)
set -u

here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
[ $# -ge 1 ] || die "usage: stress.sh DIR [CASE...]"
mkdir -p "$1" && dir=$(cd "$1" && pwd) || exit 1
shift
command=${GPROFINJECT:-$here/../target/release/gprofinject}
command=$(realpath "$command") && [ -x "$command" ] || die "no gprofinject command: build it, or set GPROFINJECT"
scale=${STRESS_SCALE:-1}
have() { command -v "$1" >/dev/null 2>&1; }
skip() { echo "SKIPPED: $*" >&2; }

# --- sources and programs ---

# The source packages, through a private apt state: the machine's own lists stay as they are.
fetch() {
    apt=$dir/apt
    mkdir -p "$dir/src" "$apt/lists/partial" "$apt/cache/archives/partial" || return 1
    private="-o Dir::State::lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User=root"
    origins() {
        # shellcheck disable=SC2086
        apt-cache $1 madison zstd redis-server 2>/dev/null |
            sed -n 's/^[^|]*|[^|]*| *\([a-z]*:[^ ]*\) \([^ /]*\)\/\([^ ]*\) .*/\1 \2 \3/p' | sort -u
    }
    found=$(origins "")
    if [ -z "$found" ]; then
        # shellcheck disable=SC2086
        apt-get -q $private update >"$apt/update.log" 2>&1
        found=$(origins "$private")
    fi
    by=
    [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] && by="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    echo "$found" | while read -r uri suite component; do
        echo "deb-src $by $uri $suite $component"
    done >"$apt/sources.list"
    sources="$private -o Dir::Etc::sourcelist=$apt/sources.list -o Dir::Etc::sourceparts=/dev/null"
    # shellcheck disable=SC2086
    apt-get -q $sources update >"$apt/sources.log" 2>&1
    # shellcheck disable=SC2086
    (cd "$dir/src" && apt-get -q $sources source "$1") >"$apt/$1.log" 2>&1
}

unpacked() { find "$dir/src" -maxdepth 1 -type d -name "$1-[0-9]*" 2>/dev/null | sort | tail -n 1; }

build_zstd() {
    [ -x "$dir/zstd" ] && return
    [ -n "$(unpacked libzstd)" ] || fetch zstd || return 1
    make -C "$(unpacked libzstd)/programs" zstd CFLAGS="-O2 -g1" HAVE_LZMA=0 HAVE_LZ4=0 HAVE_ZLIB=0 \
        >"$dir/zstd.log" 2>&1 && cp "$(unpacked libzstd)/programs/zstd" "$dir/zstd"
}

build_redis() {
    [ -x "$dir/redis-server" ] && return
    [ -n "$(unpacked redis)" ] || fetch redis || return 1
    make -C "$(unpacked redis)" MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O2 REDIS_CFLAGS=-g1 \
        >"$dir/redis.log" 2>&1 || return 1
    for program in redis-server redis-benchmark redis-cli; do
        cp "$(unpacked redis)/src/$program" "$dir/$program" || return 1
    done
}

# --- one run ---

# What is run is prefixed with "$@", which is empty or gprofinject with its options.

input() { # Programs and text, the same on this machine each time.
    [ -s "$dir/input" ] || find /usr/bin /usr/include -type f 2>/dev/null | sort | head -n 4000 |
        xargs cat 2>/dev/null | head -c 60000000 >"$dir/input"
}

run_zstd() {
    "$@" "$dir/zstd" -q -T2 -$((11 + scale)) -f -o "$out.zst" "$dir/input" || return 1
    "$dir/zstd" -q -d -c "$out.zst" | cmp - "$dir/input" || return 1
    cksum <"$out.zst"
    rm -f "$out.zst"
}

run_unzstd() {
    [ -s "$dir/input.zst" ] || "$dir/zstd" -q -T2 -5 -f -o "$dir/input.zst" "$dir/input"
    for _ in $(seq $((5 * scale))); do "$dir/zstd" -q -d -c "$dir/input.zst"; done >/dev/null
    "$@" "$dir/zstd" -q -d -c "$dir/input.zst" | cksum
}

# Everything in it comes out the same whatever the order in which clients are served.
run_redis() {
    socket=$out.socket
    rm -f "$socket" "$out.rdb"
    "$@" "$dir/redis-server" --port 0 --unixsocket "$socket" --save '' --dir "$(dirname "$out")" \
        --dbfilename "$(basename "$out").rdb" --enable-debug-command yes --io-threads 2 \
        --io-threads-do-reads yes --loglevel warning >"$out.log" 2>&1 &
    server=$!
    for _ in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done
    cli() { "$dir/redis-cli" -s "$socket" "$@"; }
    seq 1 $((100000 * scale)) | awk '{ printf "SET key:%d %d\r\nHSET hash:%d f%d v%d\r\nZADD set %d m%d\r\n", $1, $1 * 7, $1 % 1000, $1, $1, $1 % 977, $1 }' |
        cli --pipe | grep errors
    "$dir/redis-benchmark" -s "$socket" -q -c 30 -P 4 -n $((100000 * scale)) \
        -t ping,set,get,incr,lpush,rpush,lpop,sadd,hset,zadd,lrange_100,mset >"$out.bench" 2>&1 || return 1
    cli debug digest
    cli bgsave >/dev/null # in a forked child
    for _ in $(seq 300); do
        cli info persistence | grep -q rdb_bgsave_in_progress:0 && break
        sleep 0.1
    done
    cli info persistence | grep rdb_last_bgsave_status
    cli debug reload
    cli debug digest
    cli dbsize
    cli shutdown nosave
    wait "$server"
    echo "status $?"
    rm -f "$out.rdb"
}

run_rayon() { "$@" "$dir/rayon/release/rayon-stress" $((60 * scale)); }
run_exceptions() { "$@" "$dir/exceptions" $((60000 * scale)); }
run_speedtest1() { "$@" "$corpus/speedtest1-O2" --size $((60 * scale)) --shrink-memory | sed 's/ *[0-9.]*s$//'; }
run_lua() { "$@" "$corpus/lua-O2" "$here/data/bench.lua" $((300 * scale)); }

run_gcc() {
    "$@" gcc -O2 -c -o "$out.o" "$corpus/sqlite/sqlite3.c" && cksum <"$out.o"
    rm -f "$out.o"
}

run_git() {
    rm -rf "$out.git"
    "$@" git clone -q "$here/.." "$out.git" || return 1
    "$@" git -C "$out.git" gc -q --prune=now || return 1
    "$@" git -C "$out.git" log --stat | cksum
    "$@" git -C "$out.git" fsck --strict 2>&1 | tail -n 1
    rm -rf "$out.git"
}

run_python() { "$@" python3 -m test -q test_json test_thread test_subprocess 2>&1 | grep -E '^Result|tests OK|failed'; }

# --- the table ---

# Sum of the numbers in lines of a `--stats` file that match: its indentation tells the process from its
# children, and counts from losses.
total() { awk -v lines="$2" '$0 ~ lines { gsub(/[^0-9]/, ""); sum += $0; found = 1 } END { if (found) printf "%.0f", sum }' "$1" 2>/dev/null; }
CALLS='^(  |      )"calls":'
LOST='^    "calls":|"lost_calls":'
THREADS='^(  |      )"threads":'
processes() { [ -f "$1" ] && grep -c -e '"pid":' -e '"processes":' "$1"; }

now() { date +%s.%N; }

row() { # CASE WAY, then the prefix
    name=$1 way=$2
    shift 2
    out=$dir/out/$name-$way
    stats=$out.json
    rm -f "$stats"
    began=$(now)
    "run_$name" "$@" >"$out.txt" 2>"$out.err"
    status=$?
    wall=$(echo "$(now) - $began" | bc)
    same=yes
    cmp -s "$out.txt" "$dir/out/$name-plain.txt" && [ "$status" -eq 0 ] || { same="NO ($out.txt)"; bad=1; }
    printf '| %s | %s | %.1f | %s | %s | %s | %s | %s |\n' "$name" "$way" "$wall" "$(total "$stats" "$CALLS")" \
        "$(total "$stats" "$LOST")" "$(total "$stats" "$THREADS")" "$(processes "$stats")" "$same"
}

try() { # CASE
    mkdir -p "$dir/out"
    row "$1" plain
    for hooks in both entry; do
        row "$1" "$hooks" "$command" -q "--hooks=$hooks" --stats "$dir/out/$1-$hooks.json" -o "$dir/out/$1-$hooks.gmon" --
    done
    rm -f "$dir/out"/*.gmon*
}

bad=0
wanted=" ${*:-zstd redis rayon exceptions speedtest1 lua gcc git python} "
is_wanted() { case $wanted in *" $1 "*) true ;; *) false ;; esac; }
corpus=${GPROFINJECT_CORPUS:-$dir/corpus}

echo '| program | hooks | wall s | calls | lost | threads | processes | same output |'
echo '|---|---|---:|---:|---:|---:|---:|---|'
if is_wanted zstd; then
    if build_zstd; then input; try zstd; else skip "zstd: no source, see $dir/apt, $dir/zstd.log"; fi
fi
if is_wanted build-redis; then # for attach-redis.sh
    build_redis || skip "redis: no source, see $dir/apt, $dir/redis.log"
fi
if is_wanted redis; then
    if build_redis; then try redis; else skip "redis: no source, see $dir/apt, $dir/redis.log"; fi
fi
if is_wanted rayon; then
    if CARGO_TARGET_DIR=$dir/rayon cargo build -q --release --manifest-path "$here/stress/rayon/Cargo.toml"
    then try rayon; else skip "rayon: not built"; fi
fi
if is_wanted exceptions; then
    if g++ -O2 -pthread -o "$dir/exceptions" "$here/stress/exceptions.cc"
    then try exceptions; else skip "exceptions: no g++"; fi
fi
if is_wanted speedtest1 || is_wanted lua || is_wanted gcc; then
    "$here/corpus.sh" "$corpus" >"$dir/corpus.log" 2>&1 || skip "no corpus, see $dir/corpus.log"
fi
for name in speedtest1 lua gcc git python; do
    is_wanted "$name" || continue
    case $name in
        speedtest1 | lua) [ -x "$corpus/$name-O2" ] && try "$name" ;;
        gcc) [ -f "$corpus/sqlite/sqlite3.c" ] && try gcc ;;
        git) if have git; then try git; else skip "no git"; fi ;;
        python) if python3 -m test -h >/dev/null 2>&1; then try python; else skip "no python3 with its tests"; fi ;;
    esac
done
exit $bad
