#!/bin/sh
# corpus.sh DIR [KIND...]: builds the real programs that the system tests and benches run.
#
# lua, sqlite's speedtest1 and bzip2 from the Debian source packages of this machine's own release, so
# that this repository need not contain copies of them. Each is built plain at -O2 and at -Os, with symbols, as
# the compiler's default PIE; and with -pg; the kind cov is with --coverage, which only the bench of basic-block
# counts uses, and the kind hooked is with gcc's -finstrument-functions and data/instrument.c, for the bench of measured times.
# The variable CORPUS names other programs than these three: of these, zstd, which only the bench uses, and ninja, which is for
# arguments.sh.
#
# Leaves DIR/PROGRAM-KIND, by default of O2, Os and pg. Existing programs are not built again.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
. "$here/die.sh"
[ $# -ge 1 ] || die "usage: corpus.sh DIR [KIND...]"
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
kinds=${*:-O2 Os pg}
programs=${CORPUS:-lua speedtest1 bzip2}
cc=${CC:-gcc}
is_wanted() { case " $programs " in *" $1 "*) ;; *) return 1 ;; esac; }

wanted=
for program in $programs; do
    for kind in $kinds; do
        [ -x "$dir/$program-$kind" ] || wanted=yes
    done
done
[ -n "$wanted" ] || exit 0

for tool in "$cc" make tclsh; do
    command -v "$tool" >/dev/null || die "needs $tool (Debian packages: gcc make tcl)"
done

# --- the source packages ---
packages=
for program in $programs; do
    case $program in
        lua) packages="$packages lua5.4" ;;
        speedtest1) packages="$packages sqlite3" ;;
        bzip2) packages="$packages bzip2" ;;
        zstd) packages="$packages zstd" ;;
        ninja) packages="$packages ninja-build" ;;
        *) die "$program is not in the corpus" ;;
    esac
done
# shellcheck disable=SC2086
"$here/sources.sh" "$dir" $packages
unpacked() { find "$dir/src" -maxdepth 1 -type d -name "$1-*" | sort | tail -n 1; }
lua=$(unpacked lua5.4)/src
sqlite=$(unpacked sqlite3)
bzip2=$(unpacked bzip2)
zstd=$(unpacked libzstd)
ninja=$(unpacked ninja-build)

# sqlite ships its parts; the amalgamation is put together by its own makefile.
amalgamation=$dir/sqlite
if is_wanted speedtest1 && [ ! -s "$amalgamation/sqlite3.c" ]; then
    mkdir -p "$amalgamation"
    (cd "$amalgamation" && "$sqlite/configure" --disable-tcl && make sqlite3.c) >"$dir/sqlite.log" 2>&1 ||
        die "sqlite's amalgamation cannot be made (see $dir/sqlite.log)"
fi

# Debian's lua asks its own build rules for the multiarch folder; no modules are loaded from there.
mkdir -p "$dir/include"
echo '#define DEB_HOST_MULTIARCH "none"' >"$dir/include/lua5.4-deb-multiarch.h"

# --- the programs ---
build() { # KIND FLAGS
    for program in $programs; do
        "build_$program" "$1" "-g $2" || return 1
    done
}
build_lua() {
    kind=$1
    flags=$2
    # Without a fixed seed lua hashes differently in each run, and its cache of strings goes by their
    # addresses: no two runs would have the same calls.
    # shellcheck disable=SC2046,SC2086
    "$cc" $flags -std=gnu99 "-Dluai_makeseed(L)=42" -DSTRCACHE_N=1 -DSTRCACHE_M=2 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -I "$dir/include" -o "$dir/lua-$kind" \
        $(find "$lua" -name '*.c' ! -name luac.c | sort) -lm -ldl
}
build_speedtest1() {
    # shellcheck disable=SC2086
    "$cc" $2 -I "$amalgamation" -o "$dir/speedtest1-$1" \
        "$sqlite/test/speedtest1.c" "$amalgamation/sqlite3.c" -lm -ldl -lpthread
}
build_bzip2() {
    # shellcheck disable=SC2086
    (cd "$bzip2" && "$cc" $2 -D_FILE_OFFSET_BITS=64 -o "$dir/bzip2-$1" \
        bzip2.c blocksort.c huffman.c crctable.c randtable.c compress.c decompress.c bzlib.c)
}
build_zstd() {
    # shellcheck disable=SC2086
    (cd "$zstd" && "$cc" $2 -DZSTD_MULTITHREAD -DZSTD_LEGACY_SUPPORT=0 -pthread -I lib -I lib/common -o "$dir/zstd-$1" \
        programs/*.c lib/common/*.c lib/compress/*.c lib/decompress/*.c lib/decompress/*.S lib/dictBuilder/*.c)
}
build_ninja() {
    # Some files are for Windows, are what re2c makes others of, or contain another main function.
    others='.*(_test|perftest|-win32|win32port|\.in|/test|hash_collision_bench|browse|includes_normalize.*|minidump.*|msvc.*)\.cc'
    # shellcheck disable=SC2046,SC2086
    "${CXX:-g++}" $2 -std=c++17 -o "$dir/ninja-$1" \
        $(find "$ninja/src" -maxdepth 1 -name '*.cc' -regextype posix-extended ! -regex "$others" | sort)
}
# All kinds at once: most of the time one compiler has sqlite's one large file.
jobs=
for kind in $kinds; do
    case $kind in
        pg) flags="-O2 -pg" ;;
        static) flags="-O2 -static" ;;
        cov) flags="-O2 --coverage" ;;
        hooked) flags="-O2 -finstrument-functions -pthread $here/data/instrument.c" ;;
        *) flags=-$kind ;;
    esac
    build "$kind" "$flags" 2>"$dir/build-$kind.log" &
    jobs="$jobs $!:$kind"
done
for job in $jobs; do
    wait "${job%%:*}" || die "build of kind ${job#*:} failed (see $dir/build-${job#*:}.log)"
done
