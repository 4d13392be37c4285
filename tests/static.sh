#!/bin/bash
# static.sh [DIR]: compares static busybox and bash, built from Debian's sources, with callgrind, and prints a table
# (docs/internals/testing.md, "Static programs"). Every call of their own functions is compared, in both hook modes; those of the C library
# depend on the processor, of which valgrind has another one. The commands fork no processes, because callgrind writes one file
# for each. DIR keeps the sources and the programs; by default it is in the build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build -q --release
cargo build -q --release -p gprofinject-tests -F arc-check
target=$(realpath "${CARGO_TARGET_DIR:-target}")
check=$target/release/arc-check
mkdir -p "${1:-$target/static}"
dir=$(realpath "${1:-$target/static}")
tests/sources.sh "$dir" busybox bash
unpacked() { find "$dir/src" -maxdepth 1 -type d -name "$1-*" | sort | tail -n 1; }

# gprof leaves out local names with a dot, and so does a gmon.out for it.
shown() { # FROM TO
    objcopy -w --globalize-symbol='!*.cold*' --globalize-symbol='*.isra.*[0-9]' --globalize-symbol='*.part.*[0-9]' \
        --globalize-symbol='*.constprop.*[0-9]' --globalize-symbol='*.[0-9]*' "$1" "$2"
}

if [ ! -x "$dir/busybox" ]; then
    (
        cd "$(unpacked busybox)"
        make defconfig
        sed -i 's/# CONFIG_STATIC is not set/CONFIG_STATIC=y/; s/CONFIG_TC=y/# CONFIG_TC is not set/' .config
        sed -i 's/# CONFIG_DEBUG is not set/CONFIG_DEBUG=y/' .config
        # yes ends by a signal when make has read enough.
        (yes "" || true) | make oldconfig
        make -j"$(nproc)" busybox_unstripped
    ) >"$dir/busybox.log" 2>&1 </dev/null
    shown "$(unpacked busybox)/busybox_unstripped" "$dir/busybox"
fi
if [ ! -x "$dir/bash" ]; then
    (
        cd "$(unpacked bash)"
        ./configure --enable-static-link --without-bash-malloc --disable-nls CFLAGS='-g -O2'
        make -j"$(nproc)" bash
    ) >"$dir/bash.log" 2>&1 </dev/null
    shown "$(unpacked bash)/bash" "$dir/bash"
fi

work=$(mktemp -d)
cd "$work"
for i in $(seq 0 399); do echo "line $i of $((i * i % 97))"; done >text
cat >script <<'SCRIPT'
declare -A seen
fib() { if [ $1 -lt 2 ]; then r=$1; else local a; fib $(($1 - 1)); a=$r; fib $(($1 - 2)); r=$((a + r)); fi; }
fib 12
while read -r line; do
    [[ $line =~ ([0-9]+)$ ]] && seen[${BASH_REMATCH[1]}]=$((${seen[${BASH_REMATCH[1]}]:-0} + 1))
    case $line in *7*) sevens="$sevens ${line//e/E}" ;; esac
done <text
trap 'echo end' EXIT
printf '%d %d %s\n' $r ${#seen[@]} "${sevens:0:40}"
eval 'a=({1..50})'; echo "${a[@]: -3}"; set -- x y z; shift; echo "$@" ${a[7]/7/q}
SCRIPT
cat >script.sh <<'SCRIPT'
fib() { if [ $1 -lt 2 ]; then r=$1; else fib $(($1 - 1)); set -- $1 $r; fib $(($1 - 2)); r=$(($2 + r)); fi; }
fib 10
while read -r line; do case $line in *7*) n=$((n + 1)); x=${line#line } ;; esac; done <text
echo $r $n "${x%% *}"
SCRIPT

wrong=0
row() { # NAME PROGRAM ARGS...
    local name=$1 hooks result
    shift
    for hooks in both entry; do
        # Nothing of the environment, on which shells and awk depend.
        env -i PATH=/usr/bin:/bin "$check" --with-lines --hooks "$hooks" "$@" >"$work/$name-$hooks" 2>&1 || wrong=1
        result=$(tail -n 1 "$work/$name-$hooks")
        sed -nE "s/^(equal|DIFFERENT): ([0-9]+) arcs .*, ([0-9]+) call sites; calls: callgrind ([0-9]+), ours ([0-9]+)$/| $name | $hooks | \2 | \3 | \4 | \5 | \1 |/p" <<<"$result" | grep . || echo "| $name | $hooks | $result |"
    done
}
echo '| command | hooks | arcs | call sites | calls by callgrind | ours | |'
echo '|---|---|---:|---:|---:|---:|---|'
row 'bash' "$dir/bash" --norc script
row 'busybox sh' "$dir/busybox" sh script.sh
row 'busybox awk' "$dir/busybox" awk '{ s += $2; a[$2 % 7]++ } END { for (i = 0; i < 7; i++) print i, a[i]; print s }' text
for command in 'sort -k4' 'sed s/1/2/g' 'grep -c 1' sha256sum md5sum 'gzip -c' 'bzip2 -c' 'od -c' 'cut -c3-9' wc rev; do
    # shellcheck disable=SC2086
    row "busybox ${command%% *}" "$dir/busybox" $command text
done
echo "Details: $work" >&2
exit $wrong
