#!/usr/bin/env bash
# One relocatable tarball of kiln: the Python package with kilnd, kiln-call, kiln-worker, kiln-tuner, kilnctl and every shared library that
# they need but glibc's, libstdc++ and torch's own. Unpacked anywhere it runs with that machine's Python and torch:
#   tar -xzf kiln.tar.gz -C /some/where && PYTHONPATH=/some/where/kiln python script.py
#   /some/where/kiln/bin/kilnd --help
# Usage: deploy/bundle.sh [OUTPUT]    default: build/kiln-VERSION-x86_64.tar.gz
# KILN_BUILD: the build directory to take it from (default: build/), with the target kiln_wheel built.
# Fails above 60 MB compressed. The same build gives the same bytes.
set -euo pipefail
case "${1:-}" in
  -h|--help) sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  -*) echo "usage: $0 [OUTPUT]" >&2; exit 2 ;;
esac
root=$(cd "$(dirname "$0")/.." && pwd)
build=${KILN_BUILD:-$root/build}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
output=${1:-$build/kiln-$version-x86_64.tar.gz}
limit=60000000

fail() { printf 'bundle: %s\n' "$*" >&2; exit 1; }

for tool in patchelf strip ldd gzip; do
  command -v "$tool" >/dev/null || fail "$tool is missing: run deploy/install_deps.sh"
done
for file in client/python/_C.abi3.so bin/kilnd bin/kiln-call bin/kiln-worker bin/kiln-tuner bin/kilnctl; do
  [ -f "$build/$file" ] || fail "$build/$file is missing: run ninja -C $build kiln_wheel"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-bundle-XXXXXX")
trap 'rm -rf "$work"' EXIT
package=$work/kiln/kiln
mkdir -p "$package/bin" "$work/kiln/bin"
cp "$root"/client/python/kiln/{*.py,*.pyi,py.typed} "$package/"
cp "$build/client/python/_C.abi3.so" "$package/"
for program in kilnd kiln-call kiln-worker kiln-tuner kilnctl; do
  cp "$build/bin/$program" "$package/bin/"
  ln -s "../kiln/bin/$program" "$work/kiln/bin/$program"
done
python3 "$root/client/python/bundle_libraries.py" "$package"
python3 "$root/client/python/bundle_metadata.py" "$root/pyproject.toml" "$work/kiln"

# `ldd` looks at the moved tree: a library that is neither in it nor the system's own is an error here, not at a
# user's. Names as in bundle_libraries.py's NEVER.
for file in "$package/_C.abi3.so" "$package"/bin/*; do
  stray=$(ldd "$file" | awk -v here="$work/" '$2 == "=>" && (index($3, here) != 1 || $3 == "not") {print $1}' \
    | grep -Ev '^lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|stdc\+\+|gcc_s|gomp)\.so' || true)
  [ -z "$stray" ] || fail "$(basename "$file") needs $(echo $stray) from outside of the bundle"
done

mkdir -p "$(dirname "$output")"
tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - kiln | gzip -n -9 >"$output.new"
bytes=$(stat -c %s "$output.new")
[ "$bytes" -le "$limit" ] || { rm "$output.new"; fail "$bytes bytes compressed, more than $limit"; }
mv "$output.new" "$output"
echo "$output: $((bytes / 1000000)) MB"
