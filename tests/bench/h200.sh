#!/usr/bin/env bash
# The GPU table: eager, TorchInductor and kiln on this machine's GPU. Options: tests/bench/h200.py --help.
# PYTHON: the interpreter whose torch has CUDA (default: .venv's, else python3).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
exec "$python" "$root/tests/bench/h200.py" "$@"
