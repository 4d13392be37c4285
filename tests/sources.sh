#!/bin/sh
# sources.sh DIR PACKAGE...: unpacks Debian's source packages of this machine's own release as DIR/src/PACKAGE-VERSION.
#
# A source package may also be named by a program of its: zstd for libzstd.
# Packages that are there already are not fetched again. apt's own state and lists of this machine stay as they are: apt
# works in DIR/apt.
set -eu

. "$(dirname "$0")/die.sh"
[ $# -ge 2 ] || die "usage: sources.sh DIR PACKAGE..."
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
src=$dir/src
apt=$dir/apt
mkdir -p "$src" "$apt/lists/partial" "$apt/cache/archives/partial"

missing=
for package in "$@"; do
    [ -n "$(find "$src" -maxdepth 1 -type d \( -name "$package-*" -o -name "lib$package-*" \))" ] ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

for tool in apt-get apt-cache dpkg-source; do
    command -v "$tool" >/dev/null || die "needs $tool (Debian package: dpkg-dev)"
done
# apt drops to a user of its own, who may not be able to write here.
private="-o Dir::State::lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User=root"

# Where this machine gets a package from: "URI SUITE COMPONENT" lines, from apt's own tables. No program may have the name of the source
# package, but each machine has dpkg.
origins() {
    # shellcheck disable=SC2086
    apt-cache $1 madison $missing dpkg 2>/dev/null |
        sed -n 's/^[^|]*|[^|]*| *\([a-z]*:[^ ]*\) \([^ /]*\)\/\([^ ]*\) .*/\1 \2 \3/p' | sort -u
}

found=$(origins "")
if [ -z "$found" ]; then
    # A fresh machine with empty package lists. A third party's source may fail; the result is checked below.
    # shellcheck disable=SC2086
    apt-get -q $private update >"$apt/update.log" 2>&1 || true
    found=$(origins "$private")
fi
[ -n "$found" ] || die "apt knows no source of$missing (see $apt/update.log)"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
by=
[ -r "$keyring" ] && by="[signed-by=$keyring]"
echo "$found" | while read -r uri suite component; do
    echo "deb-src $by $uri $suite $component"
done >"$apt/sources.list"
sources="$private -o Dir::Etc::sourcelist=$apt/sources.list -o Dir::Etc::sourceparts=/dev/null"
# shellcheck disable=SC2086
apt-get -q $sources update >"$apt/sources.log" 2>&1 ||
    die "cannot read the source package lists (see $apt/sources.log)"
for package in $missing; do
    # A mirror may lack the files of the newest version that it lists.
    # shellcheck disable=SC2086
    versions=$(apt-cache $sources showsrc "$package" 2>/dev/null | sed -n 's/^Version: //p' | sort -rVu)
    for version in $versions; do
        # shellcheck disable=SC2086
        (cd "$src" && apt-get -q $sources source "$package=$version") >"$apt/$package.log" 2>&1 && continue 2
    done
    die "apt-get source $package failed (see $apt/$package.log)"
done
