#!/usr/bin/env bash
# Checks that folders include one way and Python's modules import one way (tests/arrows.py), that numbers of machines
# stand in compiler/target (tests/machine_numbers.py), that no class or function of cache, client, compiler and server is
# too large (tests/class_sizes.py), that limits stand in their tree's header (tests/limits.py), that Python is as ruff
# and mypy want it (pyproject.toml) and that every C++ file is as .clang-format says. A program that is missing is named,
# and its part is not checked. They judge as these versions do: LLVM 22 (deploy/install_deps.sh --dev), ruff and mypy of
# deploy/setup.sh --tests.
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
  "") options=(--dry-run -Werror) ruff_options=() ;;
  --fix) options=(-i) ruff_options=(--fix) ;;
  --tidy) tidy; exit ;;
  --tidy-quick) tidy -checks=-clang-analyzer-*; exit ;;
  *) echo "usage: $0 [--fix | --tidy | --tidy-quick]" >&2; exit 2 ;;
esac
has() {  # PROGRAM HOW-TO-GET-IT
  command -v "$1" >/dev/null || { echo "$1 is missing ($2): its part is not checked" >&2; return 1; }
}
PATH="$PWD/.venv/bin:$PATH"
tests/arrows.py
tests/machine_numbers.py
tests/class_sizes.py
tests/limits.py
if has ruff "deploy/setup.sh --tests"; then
  ruff check --no-cache --quiet "${ruff_options[@]}" .
  echo "ruff: clean"
fi
if has mypy "deploy/setup.sh --tests"; then
  mypy --no-error-summary --cache-dir "${KILN_BUILD:-build}/.mypy_cache"
  echo "mypy: clean"
fi
if has clang-format-22 "deploy/install_deps.sh --dev"; then
  find cache client compiler server tests \( -name '*.cc' -o -name '*.h' \) -print0 \
    | xargs -0 clang-format-22 "${options[@]}"
  echo "clang-format: clean"
fi
