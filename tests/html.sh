#!/usr/bin/env bash
# Makes HTML reports of real programs and of one with 50,000 functions, and tries them in a Chromium without a window.
# Prints how long each takes to load. Installs nothing: without chromium and node it prints SKIPPED and ends with status 77.
#
# PICTURES=FOLDER tests/html.sh also writes pictures of all views, light and dark, to look at. CORPUS=FOLDER is where
# tests/corpus.sh has built lua and speedtest1, and BUILT=1 takes the commands as they are.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in node gcc g++ objcopy gprof; do
    command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool"; exit 77; }
done
if ! command -v "${CHROMIUM:-chromium}" >/dev/null; then
    echo "SKIPPED: no chromium"
    exit 77
fi

target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "${BUILT:-}" ] || cargo build --release -q -p gprofinject -p gmon-report
gprofinject=$target/release/gprofinject
gmon=$target/release/gmon
corpus=${CORPUS:-$target/corpus}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$PWD
cd "$work"

# run NAME OPTIONS... -- PROGRAM ARGS...: runs a program and keeps its profile as NAME.out. Its own status does not matter.
run() {
    local name=$1
    shift
    "$gprofinject" -q -o "$name.out" "$@" >"$name.stdout" 2>"$name.stderr" || true
}

reports=()
# report KIND NAME FILES...: makes NAME.html of a run's files, to be tried as KIND.
report() {
    local kind=$1 name=$2
    shift 2
    "$gmon" html -o "$name.html" "$@" 2>"$name.stderr"
    reports+=("$kind=$name.html")
}

if [ -x "$corpus/lua-O2" ]; then
    run lua --paths -- "$corpus/lua-O2" "$here/tests/data/bench.lua" 20
    report paths lua "$corpus/lua-O2" lua.pb.gz
    run sampled -- "$corpus/lua-O2" "$here/tests/data/bench.lua" 20
    report sampled sampled "$corpus/lua-O2" sampled.out
    # What gprof prints of this one is compared with the page.
    reports[-1]+="=$corpus/lua-O2=sampled.out"
    report sampled whole sampled.pb.gz
fi
if [ -x "$corpus/speedtest1-O2" ]; then
    run counted --count lines -- "$corpus/speedtest1-O2" --size 2 :memory:
    report counted counted "$corpus/speedtest1-O2" counted.out
    run speedtest --times -- "$corpus/speedtest1-O2" --size 5 :memory:
    report measured speedtest "$corpus/speedtest1-O2" speedtest.pb.gz
fi
if command -v git >/dev/null; then
    run git --paths -- git -C "$here" log --stat -n 50
    report paths git git.pb.gz
fi
if command -v python3 >/dev/null; then
    # The command may be a script that finds the interpreter.
    run python --paths -- "$(python3 -c 'import sys; print(sys.executable)')" -c 'import json; print(sum(len(json.dumps(list(range(n)))) for n in range(300)))'
    report paths python python.pb.gz
fi
g++ -g -O1 -o exceptions "$here/tests/programs/exc-many.cc"
run exceptions --count lines -- ./exceptions
report counted exceptions ./exceptions exceptions.out
if command -v rustc >/dev/null; then
    rustc -g -O -o panics "$here/tests/programs/panic-catch.rs" 2>rustc.stderr
    run panics --paths -- ./panics
    report paths panics ./panics panics.pb.gz
fi

# Names that are HTML, that turn the direction of writing, and that have control characters.
cat >names.c <<'END'
#include <stdio.h>
__attribute__((noinline)) int one(int n) { return n < 2 ? n : one(n - 1) + 1; }
__attribute__((noinline)) int two(int n) { return one(n) * 2; }
__attribute__((noinline)) int three(int n) { return two(n) * 3; }
__attribute__((noinline)) int four(int n) { return three(n) * 4; }
int main(void) { for (int i = 0; i < 1000; i++) printf("%d\n", four(i % 50)); }
END
gcc -g -O1 -fno-ipa-icf -fno-inline -o names.plain names.c
cat >names.list <<'END'
one </script><img/src=x/onerror=window.hacked=1>
two &lt;b&gt;"'`${window.hacked=1}`
END
printf 'three evil\xe2\x80\xaegnp.exe\nfour \x1b[31m\x07"><svg/onload=window.hacked=1>\n' >>names.list
objcopy --redefine-syms=names.list names.plain names
run hostile --paths -- ./names
report hostile hostile ./names hostile.pb.gz

# 50,000 functions in a tree, of which every eighth also calls one of a thousand others.
awk 'BEGIN {
    n = 50000
    for (file = 0; file < 10; file++) {
        out = "large" file ".c"
        print "extern volatile int sink;" >out
        for (i = file; i < n; i += 10) {
            for (c = 2 * i + 1; c <= 2 * i + 2; c++) if (c < n) printf "void function_of_the_tree_%d(int);", c >out
            printf "void common_function_%d(int);\n", i * 7 % 1000 >out
            printf "void function_of_the_tree_%d(int x) { sink += x;", i >out
            if (i % 8 == 0) printf " common_function_%d(x);", i * 7 % 1000 >out
            for (c = 2 * i + 1; c <= 2 * i + 2; c++) if (c < n) printf " function_of_the_tree_%d(x + 1);", c >out
            print " }" >out
        }
    }
    print "volatile int sink;" >"large10.c"
    for (i = 0; i < 1000; i++) printf "void common_function_%d(int x) { for (int i = 0; i < %d; i++) sink += x; }\n", i, i >"large10.c"
    print "void function_of_the_tree_0(int); int main(void) { for (int i = 0; i < 3; i++) function_of_the_tree_0(i); }" >"large10.c"
}'
printf '%s\n' large*.c | xargs -P 2 -I{} gcc -c -o {}.o {}
gcc -o large large*.o
run large -- ./large
report large large large.pb.gz
reports[-1]+="=50000"
# gprofinject has no room for the times of all these functions at once.
run large-paths --paths -- ./large
report large large-paths ./large large-paths.pb.gz
reports[-1]+="=40000"

node "$here/tests/html/report.mjs" "${reports[@]}"
