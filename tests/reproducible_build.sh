#!/usr/bin/env bash
# Builds kiln-worker, or another target, of the commit that is checked out in two directories whose names differ in
# length and depth, and compares the two:
#   tests/reproducible_build.sh [TARGET [REPORT]]
# Its build id is part of every key: where two builds of one commit differed, daemons of a tier would share nothing.
# Where they do differ the first section that does is named. Without ccache, which would give one's objects to the
# other. REPORT: a file for the result as JUnit XML. KILN_JOBS: compilers at once. Takes hours of a core for kiln-worker.
# KILN_CONTROL=1: with debug information, which has the directories: they have to differ.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
target=${1:-kiln-worker}
report=${2:-}
work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-reproducible-XXXXXX")
trap 'rm -rf "$work"' EXIT

export CCACHE_DISABLE=1

build() {  # DIRECTORY: its sources, and what is made of them
  mkdir -p "$1"
  git -C "$root" archive HEAD | tar -x -C "$1"
  # The packages that a build takes NVIDIA's assembler from, where there are any.
  local options=()
  [ ! -e "$root/.venv/bin/python" ] || options+=("-DPython3_EXECUTABLE=$root/.venv/bin/python")
  [ -z "${KILN_CONTROL:-}" ] || options+=("-DCMAKE_CXX_FLAGS=-g1")
  cmake -S "$1" -B "$1/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKILN_TESTS=OFF -DCCACHE=OFF "${options[@]}" >/dev/null
  cmake --build "$1/build" --target "$target" -j "${KILN_JOBS:-$(nproc)}" >"$1/log" || {
    tail -50 "$1/log"
    return 1
  }
}
result_of() {
  find "$1/build" -type f \( -name "$target" -o -name "lib$target.a" \) ! -path '*/CMakeFiles/*' | head -n 1
}
build_id() { readelf -n "$1" 2>/dev/null | sed -n 's/ *Build ID: //p' | head -n 1; }

# But for the build id, which follows from all others.
first_difference() {  # A B
  cmp "$1" "$2" | head -n 1
  local name
  for name in $(readelf -SW "$1" 2>/dev/null | sed -n 's/^ *\[ *[0-9]*\] \(\.[^ ]*\).*/\1/p'); do
    [ "$name" != .note.gnu.build-id ] || continue
    cmp -s <(section "$name" "$1") <(section "$name" "$2") && continue
    echo "the first section that differs is $name:"
    diff <(section "$name" "$1" | strings) <(section "$name" "$2" | strings) | head -n 8
    return
  done
}
section() { objcopy -O binary --only-section="$1" "$2" /dev/stdout 2>/dev/null; }

verdict() {  # the failure, or nothing
  if [ -n "$report" ]; then
    mkdir -p "$(dirname "$report")"
    { echo '<testsuite name="reproducible_build"><testcase classname="reproducible_build" name="'"$target"'">'
      [ -z "$1" ] || echo '<failure message="two builds of one commit differ"/>'
      echo '</testcase></testsuite>'; } >"$report"
  fi
  [ -z "$1" ] || { echo "$1" >&2; exit 1; }
}

first=$work/a second=$work/another/directory/that-has-a-longer-name
build "$first"
build "$second"
one=$(result_of "$first") other=$(result_of "$second")
[ -n "$one" ] && [ -n "$other" ] || { echo "$target was not made" >&2; exit 1; }
echo "build ids: $(build_id "$one") and $(build_id "$other")"
if cmp -s "$one" "$other"; then
  echo "$target: the same bytes from two directories"
  verdict ""
else
  verdict "$target: two builds of one commit differ
$(first_difference "$one" "$other")"
fi
