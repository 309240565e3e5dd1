#!/usr/bin/env bash
# From a fresh checkout on Debian 12 to a trained model: sets up (deploy/setup.sh), then trains a small GPT-2
# eager, through kiln with an empty cache, and through kiln again in a new process; prints one table.
# The cache of this comparison is its own, so that "cold" is cold each time. Options are passed on to
# deploy/quickstart_train.py (--help).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/deploy/setup.sh"

python="$root/.venv/bin/python"
work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-quickstart-XXXXXX")
export KILN_STORE="$work/store" KILN_RUNTIME_DIR="$work/run" TORCHINDUCTOR_CACHE_DIR="$work/torch"
unset KILN_ADDRESS
cleanup() {
  # The daemon of this comparison alone: KILN_STORE and KILN_RUNTIME_DIR lead kilnctl to it.
  pid=$("$root/.venv/bin/kilnctl" status --json 2>/dev/null | sed -n 's/.*"pid": *"\{0,1\}\([0-9]*\).*/\1/p' | head -1) || true
  [ -z "${pid:-}" ] || kill "$pid" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

train() {  # NAME BACKEND
  local name=$1 backend=$2
  shift 2
  echo "training: $name"
  if ! "$python" "$root/deploy/quickstart_train.py" --backend "$backend" --json "$work/$name.json" "$@"; then
    echo "quickstart: the run '$name' failed (see above)." >&2
    echo "  The daemon's log: $(find "$work" -name '*.log' | head -1)" >&2
    find "$work" -name '*.log' -exec tail -5 {} \; >&2
    echo "  KILN_DEBUG=dir with the same command writes every stage of the compile." >&2
    exit 1
  fi
}
train eager eager "$@"
train cold kiln "$@"
train warm kiln "$@"
"$python" "$root/deploy/quickstart_train.py" --table "$work/eager.json" "$work/cold.json" "$work/warm.json"
