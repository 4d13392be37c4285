#!/usr/bin/env bash
# demo.sh: builds gprofinject and a small C program without -pg, profiles the program, and shows what
# gprof makes of the profile. Needs cargo, gcc and binutils. Leaves everything in the build folder.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
for tool in cargo gcc gprof; do
    command -v "$tool" >/dev/null || { echo "demo.sh: needs $tool" >&2; exit 1; }
done

cd "$root"
cargo build --release -p gprofinject
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
mkdir -p "$target/demo"
# A program this small would be one function, main, if the compiler were let inline.
gcc -O2 -fno-inline -g -o "$target/demo/words" tests/demo/words.c

cd "$target/demo"
# Prints the command line in front of what it prints itself.
show() { printf '\n$ %s\n' "$1"; bash -c "$1"; }
export PATH="$target/release:$PATH"
show 'gprofinject ./words'
show 'gprof -b -p words gmon.out | head -n 16'
show 'gprof -b -qmain words gmon.out | sed -n 6,21p'
show 'gprof -b -qprint_most_frequent words gmon.out | sed -n 6,13p'
echo
echo "All of it: cd $target/demo; gprof words gmon.out"
