#!/usr/bin/env bash
# Configures, builds and tests a preset of CMakePresets.json in its own build-PRESET:
#   tests/preset.sh debug [REPORT]   assertions on, nothing optimised: every C++ and text test
#   tests/preset.sh asan [REPORT]    the same tests with the address and undefined-behaviour sanitizers
#   tests/preset.sh tsan [REPORT]    the tests marked THREADS (server, cache, client, runtime) with the thread sanitizer
# REPORT: a file for the results as JUnit XML. KILN_JOBS: compilers and tests at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
case "${1:-}" in
  debug | asan | tsan) preset=$1 ;;
  *) echo "usage: $0 debug|asan|tsan [REPORT]" >&2; exit 2 ;;
esac
report=$(realpath -m "${2:-$root/build-$preset/ctest.xml}")
jobs=${KILN_JOBS:-$(nproc)}
cd "$root"
rm -f "$report"
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" -j "$jobs"
ctest --preset "$preset" -j "$jobs" --timeout 3600 --progress --output-junit "$report"
