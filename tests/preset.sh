#!/usr/bin/env bash
# Configures, builds and tests presets of CMakePresets.json, each in its own build-PRESET:
#   tests/preset.sh debug        assertions on, nothing optimised: every C++ and text test
#   tests/preset.sh asan         the same tests with the address and undefined-behaviour sanitizers
#   tests/preset.sh tsan         what has threads (label "threads") with the thread sanitizer
# More than one may be named. Leaves a report in build-PRESET/ctest.xml. KILN_JOBS: compilers at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { echo "usage: $0 PRESET…" >&2; exit 2; }
cd "$root"
failed=0
for preset in "$@"; do
  report="$root/build-$preset/ctest.xml"
  rm -f "$report"
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" -j "${KILN_JOBS:-$(nproc)}"
  ctest --preset "$preset" -j "${KILN_JOBS:-$(nproc)}" --timeout 3600 --progress --output-junit "$report" || failed=1
done
exit $failed
