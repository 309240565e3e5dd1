#!/usr/bin/env bash
# Checks that folders include one way (tests/arrows.py), that numbers of machines stand in compiler/target
# (tests/machine_numbers.py) and that every C++ file is as .clang-format says. The programs
# are LLVM 22's, since others judge differently: deploy/install_deps.sh --dev.
#   tests/lint.sh --fix         formats the files
#   tests/lint.sh --tidy        asks clang-tidy (.clang-tidy) about every source of a build (an hour on 2 cores)
#   tests/lint.sh --tidy-quick  the same without its static analyser (minutes)
# KILN_BUILD: the build directory whose commands and generated headers clang-tidy takes; default: build.
set -euo pipefail
cd "$(dirname "$0")/.."
tidy() {  # OPTION…
  # The commands are GCC's: what clang does not know of them says nothing about the code.
  run-clang-tidy-22 -quiet -hide-progress -p "${KILN_BUILD:-build}" -removed-arg=-fno-gnu-unique \
    -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-unknown-attributes \
    -extra-arg=-Wno-deprecated-declarations "$@" "^$PWD/(cache|client|compiler|server|tests)/.*\\.cc\$"
  echo "clang-tidy: clean"
}
case "${1:-}" in
  "") options=(--dry-run -Werror) ;;
  --fix) options=(-i) ;;
  --tidy) tidy; exit ;;
  --tidy-quick) tidy -checks=-clang-analyzer-*; exit ;;
  *) echo "usage: $0 [--fix | --tidy | --tidy-quick]" >&2; exit 2 ;;
esac
tests/arrows.py
tests/machine_numbers.py
find cache client compiler server tests \( -name '*.cc' -o -name '*.h' \) -print0 | xargs -0 clang-format-22 "${options[@]}"
echo "clang-format: clean"
