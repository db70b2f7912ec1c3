#!/bin/sh
# Installs svc from the archives of a release: the program, its pages of the manual, completions for shells.
#
#   install.sh --from WHERE [--to PREFIX] [--version VERSION]
#
#   --from     a folder, or the URL of one, with SHA256SUMS and the archives in it (default: the folder of this script)
#   --to       where it goes: PREFIX/bin, PREFIX/share (default: ~/.local)
#   --version  which version, if there are several
#
# Nothing is installed unless the archive has the checksum in SHA256SUMS. Whoever can change one can change both: get them
# from where you trust. It runs nothing of what it installs, and changes no other file.
set -eu

fail() { echo "install.sh: $*" >&2; exit 1; }
usage() { sed -n '4,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }

from='' to=${HOME:+$HOME/.local} version=''
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage
    case $1 in
        --from) from=$2 ;;
        --to) to=$2 ;;
        --version) version=$2 ;;
        *) usage ;;
    esac
    shift 2
done
[ -n "$to" ] || fail "HOME is not set: say --to PREFIX"
if [ -z "$from" ]; then
    from=$(dirname "$0")
    [ -f "$from/SHA256SUMS" ] || usage
fi

case $(uname -s) in
    Linux) system=unknown-linux-gnu ;;
    Darwin) fail "there is no archive for macOS, where svc cannot tell users and processes apart: run it on Linux" ;;
    *) fail "there is no archive for $(uname -s); build it from source" ;;
esac
case $(uname -m) in
    x86_64 | amd64) machine=x86_64-$system ;;
    aarch64 | arm64) machine=aarch64-$system ;;
    *) fail "there is no archive for $(uname -m); build it from source" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

get() { # NAME
    case $from in
        http://* | https://*)
            if command -v curl >/dev/null 2>&1; then
                curl -fsSL --retry 2 -o "$work/$1" "${from%/}/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget -qO "$work/$1" "${from%/}/$1"
            else
                fail "neither curl nor wget is installed"
            fi ;;
        *) cp "$from/$1" "$work/$1" ;;
    esac || fail "cannot get $1 from $from"
}

get SHA256SUMS
# Only names of archives for this machine: whatever else is in the list names no file here.
names=$(sed -n "s/^[0-9a-f]\{64\} [ *]\(svc-[0-9A-Za-z.+]*-$machine\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
[ -z "$version" ] || names=$(printf '%s\n' "$names" | grep -xF "svc-$version-$machine.tar.gz" || true)
[ -n "$names" ] || fail "$from has no archive${version:+ of version $version} for $machine"
[ "$(printf '%s\n' "$names" | wc -l)" -eq 1 ] || fail "$from has several versions: say --version
$names"
archive=$names
get "$archive"

expected=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]$archive\$/\1/p" "$work/SHA256SUMS")
if command -v sha256sum >/dev/null 2>&1; then
    sum=$(sha256sum "$work/$archive")
elif command -v shasum >/dev/null 2>&1; then
    sum=$(shasum -a 256 "$work/$archive")
else
    fail "neither sha256sum nor shasum is installed"
fi
[ "${sum%% *}" = "$expected" ] || fail "$archive has not the checksum in SHA256SUMS; nothing was installed"

tar -xzf "$work/$archive" -C "$work"
folder=$work/${archive%.tar.gz}
put() { # FILE PLACE MODE: at once, so that nobody runs a part of it
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    chmod "$3" "$2.new"
    mv "$2.new" "$2"
}
for page in "$folder"/man/*.1; do
    put "$page" "$to/share/man/man1/$(basename "$page")" 644
done
put "$folder/completions/svc.bash" "$to/share/bash-completion/completions/svc" 644
put "$folder/completions/_svc" "$to/share/zsh/site-functions/_svc" 644
put "$folder/completions/svc.fish" "$to/share/fish/vendor_completions.d/svc.fish" 644
put "$folder/svc" "$to/bin/svc" 755
echo "installed $to/bin/svc (${archive%.tar.gz})"
case :$PATH: in
    *:"$to/bin":*) ;;
    *) echo "note: $to/bin is not on your PATH" ;;
esac
echo "next: svc start, then svc install"
