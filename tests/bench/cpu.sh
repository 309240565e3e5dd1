#!/usr/bin/env bash
# The CPU table: eager, TorchInductor and kiln in turn on this machine. Options: tests/bench/cpu.py --help.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python="$root/.venv/bin/python"
[ -x "$python" ] || { echo "no $python: run deploy/quickstart.sh first" >&2; exit 1; }
exec "$python" "$root/tests/bench/cpu.py" "$@"
