#!/bin/bash
# Prints the table of docs/standalone.md, "Languages": programs of tests/languages, dynamic, static and stripped, alone and with
# both kinds of hooks. Output and status have to be the same. The program's own count of its calls of `fib` is compared with
# the profile's (Rust's compiler turns one of the two recursive calls into a loop). Compilers that are not installed are left
# out; Zig is `python3 -m ziglang`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
bin=$(realpath "${CARGO_TARGET_DIR:-target}/release")
work=$(mktemp -d)
cp tests/languages/* "$work"
cd "$work"

# row NAME COMPILER ARGS...: builds the program NAME.
row() {
    local name=$1 program hooks alone hooked same own found said
    shift
    command -v "$1" >/dev/null || return 0
    "$@" >"$name.log" 2>&1 </dev/null || { echo "| $name | does not build: $(tail -n 1 "$name.log") |"; return; }
    strip -o "$name.stripped" "$name"
    for program in "$name" "$name.stripped"; do
        alone=0
        timeout 60 "./$program" >out 2>err || alone=$?
        own=$(grep -ahoE 'fib= *[0-9]+' out err | grep -oE '[0-9]+$' || echo -)
        for hooks in both entry; do
            rm -f gmon.*
            hooked=0
            timeout 60 "$bin/gprofinject" --no-cache --hooks "$hooks" "./$program" >out.hooked 2>err.hooked || hooked=$?
            grep -a '^gprofinject: ' err.hooked >said || true
            grep -av '^gprofinject: ' err.hooked >err.own || true
            same=no
            [ "$alone" = "$hooked" ] && cmp -s out out.hooked && cmp -s err err.own && same=yes
            # With the names that gprof leaves out, if there are any.
            "$bin/gmon" export --to gprof gmon.pb.gz 2>/dev/null || true
            found=$(fib gmon.syms gmon.whole || true)
            [ -n "$found" ] || found=$(fib "$program" gmon.out || true)
            said=$(sed -nE 's/.*hooked ([0-9]+) of ([0-9]+) functions.*/\1 of \2/p' said | tail -n 1)
            echo "| $program | $hooks | $same | $said | $own | ${found:--} |"
        done
    done
}

# The calls of functions whose names contain fib as a word.
fib() {
    [ -e "$2" ] || return 0
    "$bin/gmon" check --records --program "$1" "$2" --json 2>/dev/null | grep -aiE '"function":"([^"]*[^a-z"])?fib([^a-z][^"]*)?"' |
        sed -E 's/.*"count":([0-9]+).*/\1/' | awk '{ sum += $1; n++ } END { if (n) print sum }'
}

echo '| program | hooks | same | hooked | own count | profile |'
echo '|---|---|---|---|---|---|'
row nim nim c --hints:off -d:release --threads:on -o:nim nim.nim
row nim-static nim c --hints:off -d:release --threads:on --passL:-static -o:nim-static nim.nim
row gdc gdc -O1 -o gdc d.d
row ldc ldc2 -O1 -of=ldc d.d
row gnat gnatmake -O1 a.adb -o gnat -bargs -static
row gnat-static gnatmake -f -O1 a.adb -o gnat-static -bargs -static -largs -static
row crystal crystal build --release -o crystal crystal.cr
row crystal-static crystal build --release --static -o crystal-static crystal.cr
row rust rustc -O -o rust rust.rs
row rust-static rustc -O -C target-feature=+crt-static -C relocation-model=static -o rust-static rust.rs
row rust-static-pie rustc -O -C target-feature=+crt-static -o rust-static-pie rust.rs
row ocaml ocamlopt -o ocaml ocaml.ml
row ocaml-static ocamlopt -ccopt -static -o ocaml-static ocaml.ml
row ghc ghc -v0 -O1 -o ghc haskell.hs
row ghc-static ghc -v0 -fforce-recomp -O1 -optl-static -o ghc-static haskell.hs
row chicken csc -o chicken scheme.scm
row gambit gsc -o gambit -exe scheme.scm
row fpc fpc -v0 -Xs- -ofpc p.pas
zig=(python3 -m ziglang build-exe zig.zig -O ReleaseSafe)
row zig-static "${zig[@]}" -femit-bin=zig-static
row zig-glibc "${zig[@]}" -lc -target x86_64-linux-gnu -femit-bin=zig-glibc
row zig-musl "${zig[@]}" -lc -target x86_64-linux-musl -femit-bin=zig-musl
