#!/usr/bin/env bash
# Checks that every C++ file is as .clang-format says; --fix formats them. The program is LLVM 22's, since
# others format differently: deploy/install_deps.sh --dev.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  "") options=(--dry-run -Werror) ;;
  --fix) options=(-i) ;;
  *) echo "usage: $0 [--fix]" >&2; exit 2 ;;
esac
find cache client compiler server tests \( -name '*.cc' -o -name '*.h' \) -print0 | xargs -0 clang-format-22 "${options[@]}"
echo "clang-format: clean"
