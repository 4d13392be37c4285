#!/usr/bin/env bash
# full.sh [CARGO TEST ARGUMENTS...]: all tests, each to its full extent: every program with every flag set, a thousand attach
# cycles, long loops, many random programs. It takes hours. docs/internals/testing.md says what it has beside `cargo test`.
# The last line is the count of tests that passed, failed and were skipped.
set -uo pipefail
cd "$(dirname "$0")/.."

export GPROFINJECT_FULL=1
export GMON_MUTATIONS=${GMON_MUTATIONS:-10000} PROPTEST_CASES=${PROPTEST_CASES:-4096}
log=$(mktemp) && skipped=$(mktemp) || exit 1
trap 'rm -f "$log" "$skipped"' EXIT
export GPROFINJECT_SKIPPED=$skipped

cargo test --workspace --release --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
sort -u "$skipped"
awk -v skipped="$(sort -u "$skipped" | wc -l)" -v seconds="$SECONDS" '
    # test result: ok. 3 passed; 0 failed; 1 ignored; ...
    /^test result:/ { passed += $4; failed += $6 }
    END { printf "full.sh: %d passed, %d failed, %d skipped, in %d s\n", passed, failed, skipped, seconds }
' "$log"
exit "$status"
