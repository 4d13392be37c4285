#!/bin/bash
# Prints a table of real Go programs: the tests of packages from Debian's source packages, and of Go's own library, alone and
# under gprofinject. Every test that passes alone has to pass hooked. The last columns compare the calls of functions with
# those that the same run counts by -covermode (tests/go/compare).
#
#     tests/go-packages.sh [PACKAGE...]
#     GO_TEST_FLAGS=-race GO_TEST_ENV=GOGC=1 tests/go-packages.sh go/types
#
# The sources of fzf, gron and restic come from Debian's source packages, and what they need, the JavaScript engine goja, the
# interpreter starlark, and the others from its binary packages: what is missing of these is named. What differs is in the files
# that the last line names.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
bin=$(realpath "${CARGO_TARGET_DIR:-target}/release")
target=$(realpath "${CARGO_TARGET_DIR:-target}")
sources=$target/go-programs
tests/sources.sh "$sources" fzf gron restic || echo "go-packages.sh: not all sources could be fetched" >&2
for package in "$sources"/src/*/; do
    path=$(sed -n 's/^XS-Go-Import-Path: //p' "$package/debian/control")
    mkdir -p "$(dirname "$sources/go/src/$path")"
    ln -sfn "$(realpath "$package")" "$sources/go/src/$path"
done
# In GOPATH mode, go needs no network.
export GO111MODULE=off GOPATH=$sources/go:/usr/share/gocode
GOCACHE=${GOCACHE:-$target/go-cache}
export GOCACHE
debian=(golang-go golang-starlark-dev golang-github-dop251-goja-dev golang-go.uber-zap-dev
    golang-github-klauspost-compress-dev)
# shellcheck disable=SC2207
debian+=($(grep -hA40 '^Build-Depends' "$sources"/src/*/debian/control | grep -oE 'golang-[a-z0-9.-]+-dev' | sort -u))
dpkg -s "${debian[@]}" >/dev/null || echo "go-packages.sh: apt-get install --no-install-recommends ${debian[*]}" >&2
packages=("$@")
[ $# -gt 0 ] || packages=(
    github.com/junegunn/fzf/src github.com/junegunn/fzf/src/algo github.com/junegunn/fzf/src/util github.com/tomnomnom/gron
    github.com/restic/restic/cmd/restic github.com/restic/restic/internal/{archiver,repository,restic,pack,restorer,walker,fs}
    go.starlark.net/starlark github.com/dop251/goja go.uber.org/zap github.com/klauspost/compress/zstd
    go/types encoding/json net/http compress/flate regexp
)
work=$(mktemp -d)
(cd tests/go/compare && go build -o "$work/compare" .)
# The tests of some packages need other tests' data, from the folder of the package.
read -ra flags <<<"${GO_TEST_FLAGS:-}"
read -ra variables <<<"${GO_TEST_ENV:-}"

results() { grep -aoE '^ *--- (PASS|FAIL|SKIP): [^ ]+' "$1" | sort; }
count() { grep -c -e "--- $2" "$1" || true; }
run() { timeout 600 env "${variables[@]}" "$@" </dev/null; }

row() {
    local package=$1 folder name=$work/${1//\//_} alone=0 hooked=0 said compared='- -'
    folder=$(go list -f '{{.Dir}}' "$package" 2>/dev/null) || { echo "| $package | not installed |"; return; }
    cd "$folder"
    go test -c "${flags[@]}" -o "$name.test" . >"$name.build" 2>&1 || { echo "| $package | does not compile |"; return; }
    run "$name.test" -test.v -test.short >"$name.alone" 2>&1 || alone=$?
    run "$bin/gprofinject" -o "$name.gmon" "$name.test" -test.v -test.short >"$name.hooked" 2>&1 || hooked=$?
    results "$name.alone" >"$name.alone.results"
    results "$name.hooked" >"$name.hooked.results"
    diff "$name.alone.results" "$name.hooked.results" >"$name.difference" || true
    said=$(sed -nE 's/.*hooked ([0-9]+) of [0-9]+ functions[^,]*, ([0-9]+) calls.*/\1 | \2/p' "$name.hooked" | tail -n 1)
    # Inlined functions are called by nobody, so there are none.
    if go test -c -gcflags=all=-l -covermode=atomic -o "$name.covered" . >>"$name.build" 2>&1 &&
        timeout 600 "$bin/gprofinject" -q --no-follow -o "$name.gmon" "$name.covered" -test.short \
            -test.coverprofile="$name.cover" >"$name.out" 2>&1 && [ -s "$name.cover" ]; then
        nm "$name.covered" >"$name.nm"
        "$bin/gmon" check --records --json "$name.gmon" >"$name.json"
        compared=$("$work/compare" "$name.cover" "$name.nm" "$name.json" 2>"$name.wrong")
    fi
    read -r functions _ wrong <<<"$compared -"
    echo "| $package | $(wc -l <"$name.alone.results") | $(count "$name.alone.results" PASS) |" \
        "$(count "$name.hooked.results" PASS) | $alone, $hooked | $said | $functions | ${wrong%% *} |"
}

echo '| package | tests | passed alone | passed hooked | status | functions hooked | calls | counts compared | wrong |'
echo '|---|---|---|---|---|---|---|---|---|'
for package in "${packages[@]}"; do
    row "$package"
done
echo "Details: $work" >&2
