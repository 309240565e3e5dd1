#!/usr/bin/env bash
# The service's table: kilnd under load against a bare gRPC server in turn. Options: tests/bench/service.py --help.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
exec python3 "$root/tests/bench/service.py" "$@"
