#!/bin/sh
# arguments.sh MODE PROGRAM [ARGS...]: compares the arguments and results that `--args auto` shows with those that gdb knows of the
# same calls, and prints how many are the same, different, or known to one of both only. Ends with status 1 if any differ.
#
# MODE is `entry` for optimised code, whose parameters gdb knows at the first instruction of a function, and `body` for code without
# optimisation, where gdb is asked after the instructions that store them. The program must make the same calls in each run, on one
# thread. It is traced several times: what differs between these runs, such as times and what depends on random numbers, is not
# compared. C++ and Rust programs with debug information:
#
#   CORPUS=ninja tests/corpus.sh DIR O0 O2         tests/arguments.sh entry DIR/ninja-O2 -n -v
#   CARGO_PROFILE_RELEASE_DEBUG=2 cargo install --root DIR ripgrep
#
#   GPROFINJECT=PATH   the command; gmon is beside it
#   CALLS=N            how many calls of each function are compared (40)
#   EXCEPT=REGEX       what is not compared, such as times: it matches `FUNCTION: PARAMETER`, or `FUNCTION:` for a result
#   RUNS=N             how often it is traced (2; Rust's hash tables have random seeds and need more)
#   SHOWN=N            of how many functions differences are printed (60)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
[ $# -ge 2 ] || die "usage: arguments.sh entry|body PROGRAM [ARGS...]"
case $1 in entry | body) mode=$1 ;; *) die "$1 is no mode: entry or body" ;; esac
shift
command=${GPROFINJECT:-$here/../target/release/gprofinject}
command=$(realpath "$command") && [ -x "$command" ] || die "no gprofinject command: build it, or set GPROFINJECT"
for tool in gdb setarch; do
    command -v "$tool" >/dev/null || die "needs $tool (Debian packages: gdb util-linux)"
done
runs=${RUNS:-2}
[ "$runs" -ge 2 ] || die "RUNS is 2 or more"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for run in $(seq "$runs"); do
    # The program's own status does not matter.
    env -i setarch -R "$command" -q --trace "$work/$run" --args auto --libs none "$@" >"$work/output" 2>&1 || true
    [ -s "$work/$run" ] || die "no trace: $(tail -n 3 "$work/output")"
    "$(dirname "$command")/gmon" trace --json "$work/$run" >"$work/$run.json"
done
# debuginfod would be asked over the network.
unset DEBUGINFOD_URLS
status=0
others=
for run in $(seq 2 "$runs"); do others=$others:$work/$run.json; done
TRACE="$work/1.json" AGAIN="${others#:}" MODE="$mode" COMPARED="$work/compared" \
    gdb -nx -batch -x "$here/data/arguments.py" --args "$@" >"$work/gdb" 2>&1 </dev/null || status=$?
[ -s "$work/compared" ] || die "gdb failed: $(tail -n 5 "$work/gdb")"
cat "$work/compared"
exit "$status"
