#!/usr/bin/env bash
# Builds what is installed beside the commands, and the Debian package:
#
#     tests/package.sh                  target/package: man pages and completions of the release build
#     tests/package.sh --deb            also a .deb in target/debian (`cargo install cargo-deb`)
#     tests/package.sh --static         the commands as static programs that run on any x86-64 Linux, in
#                                       target/x86_64-unknown-linux-musl/release (`rustup target add
#                                       x86_64-unknown-linux-musl`, and musl-gcc)
set -euo pipefail
cd "$(dirname "$0")/.."

MUSL=x86_64-unknown-linux-musl
target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')

case "${1:-}" in
    "" | --deb) ;;
    --static)
        # The library inside the program is the same: it needs no C library.
        CC_x86_64_unknown_linux_musl=musl-gcc cargo build --release --target "$MUSL" -p gprofinject -p gmon-report
        for command in gprofinject gmon; do
            file=$target/$MUSL/release/$command
            if readelf -d "$file" | grep -q NEEDED; then
                echo "package: $file needs shared libraries" >&2
                exit 1
            fi
            ls -l "$file"
        done
        exit
        ;;
    *)
        echo "usage: tests/package.sh [--deb | --static]" >&2
        exit 2
        ;;
esac

cargo build --release -p gprofinject -p gmon-report
package=$target/package
rm -rf "$package"
mkdir -p "$package"/{man,bash,zsh,fish}
for command in gprofinject gmon; do
    generate() { "$target/release/$command" --generate "$1"; }
    generate man >"$package/man/$command.1"
    generate complete-bash >"$package/bash/$command"
    generate complete-zsh >"$package/zsh/_$command"
    generate complete-fish >"$package/fish/$command.fish"
done
echo "$package"

if [ "${1:-}" = --deb ]; then
    # Debian's own form of a changelog, which a package must have, leads to ours.
    field() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$2" | head -n 1; }
    version=$(field version Cargo.toml)
    cat >"$package/changelog" <<EOF
gprofinject ($version-1) unstable; urgency=medium

  * See docs/CHANGELOG.md.

 -- $(field maintainer injector/Cargo.toml)  $(date -R)
EOF
    cargo deb --no-build -p gprofinject
fi
