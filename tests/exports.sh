#!/usr/bin/env bash
# Has other tools read exports of real programs, and compares what they read with the JSON export of the same run: callgrind_annotate,
# gprof2dot and `go tool pprof` each function and each arc, and the importers of speedscope and of the Firefox Profiler.
#
# The programs are lua and speedtest1 (CORPUS=FOLDER is where tests/corpus.sh has built them), git, a C++ and a Rust program; each run
# with counts and samples, with --libs all, with --times and with --paths. SPEEDSCOPE=FOLDER and PROFILER=FOLDER are sources of
# speedscope and of the Firefox Profiler; without them, or without node and npm, their part is SKIPPED. Their importers are bundled with
# esbuild, and npm downloads what they import. BUILT=1 takes the commands as they are.
#
# Exits with 1 if any number differs, and with 77 if the tools that everything needs are not there.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in python3 callgrind_annotate gprof2dot go g++; do
    command -v "$tool" >/dev/null || { echo "SKIPPED: no $tool"; exit 77; }
done
python3 -c 'import gprof2dot' 2>/dev/null || { echo "SKIPPED: python3 does not find gprof2dot's module"; exit 77; }

target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
[ -n "${BUILT:-}" ] || cargo build --release -q -p gprofinject -p gmon-report
gprofinject=$target/release/gprofinject
gmon=$target/release/gmon
corpus=${CORPUS:-$target/corpus}
speedscope=${SPEEDSCOPE:+$(realpath "$SPEEDSCOPE")}
profiler=${PROFILER:+$(realpath "$PROFILER")}
here=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

names=()
# exported NAME FILES...: exports a run in all formats.
exported() {
    local name=$1 format
    shift
    for format in json callgrind pprof folded speedscope firefox dot; do
        "$gmon" export --to "$format" -o "$name.$format" "$@" 2>notes || { cat notes; return 1; }
    done
    names+=("$name")
}

# profiled NAME PROGRAM ARGS...: runs a program in all ways. Its own status does not matter.
profiled() {
    local name=$1
    shift
    "$gprofinject" -q -o "$name.out" -- "$@" >/dev/null 2>&1 || true
    exported "$name-program" "$(command -v "$1")" "$name.out"
    exported "$name-process" "$name.pb.gz"
    "$gprofinject" -q --libs all -o "$name-all.out" -- "$@" >/dev/null 2>&1 || true
    exported "$name-libs" "$name-all.pb.gz"
    "$gprofinject" -q --times -o "$name-times.out" -- "$@" >/dev/null 2>&1 || true
    exported "$name-times" "$name-times.pb.gz"
    "$gprofinject" -q --paths -o "$name-paths.out" -- "$@" >/dev/null 2>&1 || true
    exported "$name-paths" "$name-paths.pb.gz"
}

[ -x "$corpus/lua-O2" ] && profiled lua "$corpus/lua-O2" "$here/tests/data/bench.lua" 3
[ -x "$corpus/speedtest1-O2" ] && profiled speedtest1 "$corpus/speedtest1-O2" --size 2 :memory:
if command -v git >/dev/null; then
    # The command may be a script that finds the program.
    git=$(git --exec-path)/git
    [ -x "$git" ] || git=$(command -v git)
    profiled git "$git" -C "$here" log --stat -n 20
fi
g++ -g -O1 -o exceptions "$here/tests/programs/exc-many.cc"
profiled exceptions ./exceptions
if command -v rustc >/dev/null; then
    rustc -g -O -o panics "$here/tests/programs/panic-catch.rs" 2>>notes
    profiled panics ./panics
fi

status=0
for name in "${names[@]}"; do
    python3 "$here/tests/exports/compare.py" "$name" || status=1
    go tool pprof -symbolize=none -svg "$name.pprof" >"$name.svg" 2>>notes || { echo "$name: go tool pprof -svg fails"; status=1; }
    if command -v dot >/dev/null; then
        dot -Tsvg -o "$name.dot.svg" "$name.dot" || { echo "$name: dot fails"; status=1; }
    fi
done

if ! command -v node >/dev/null || ! command -v npm >/dev/null || [ -z "$speedscope" ] || [ -z "$profiler" ]; then
    echo "SKIPPED: speedscope and the Firefox Profiler: needs node, npm, SPEEDSCOPE=FOLDER and PROFILER=FOLDER"
    exit "$status"
fi
mkdir bundles
cd bundles
npm init -y >/dev/null
npm install --no-audit --no-fund --silent esbuild pako@1.0.6 protobufjs@6.8.8 uint8array-json-parser@0.0.2 long \
    @streamparser/json memoize-immutable mixedtuplemap namedtuplemap common-tags devtools-reps array-move@3 array-range \
    gecko-profiler-demangle memoize-one jszip jfrview
# The profiler's newest storage format, which no export is in, comes from a package that not every registry has.
echo 'export const isJsonSlabsFile = () => false, decode = null, encode = null;' >slabs.js
echo "export { importProfilesFromArrayBuffer } from '$speedscope/src/import/index';" >speedscope-entry.ts
echo "export { unserializeProfileOfArbitraryFormat } from '$profiler/src/profile-logic/process-profile';" >firefox-entry.ts
export NODE_PATH=$PWD/node_modules
npx esbuild speedscope-entry.ts --bundle --log-level=error --platform=browser --format=iife --global-name=speedscope \
    --loader:.wasm=empty --loader:.txt=empty --outfile=speedscope.js
npx esbuild firefox-entry.ts --bundle --log-level=error --platform=node --format=cjs --alias:firefox-profiler="$profiler/src" \
    --alias:json-slabs="$PWD/slabs.js" --outfile=firefox.cjs
cd ..
node "$here/tests/exports/importers.mjs" bundles "${names[@]}" || status=1
exit "$status"
