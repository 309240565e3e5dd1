#!/usr/bin/env bash
# Makes a checkout ready: packages, .venv with PyTorch, build/, kiln's wheel in .venv. What is done is not
# done again, so a second run takes seconds. deploy/quickstart.sh and tests/run.sh start with this.
#   deploy/setup.sh           what a user needs
#   deploy/setup.sh --tests   and everything that the tests need
# KILN_PYTHON: the Python for a new .venv (3.10 to 3.13; default: python3).  KILN_JOBS: compilers at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build="$root/build"
venv="$root/.venv"
tests=no
case "${1:-}" in
  --tests) tests=yes ;;
  "") ;;
  *) echo "usage: $0 [--tests]" >&2; exit 2 ;;
esac

start=$SECONDS
say() { printf '[%3ds] %s\n' $((SECONDS - start)) "$*"; }
fail() { printf '\nsetup: %s\n' "$*" >&2; exit 1; }

say "system packages"
if [ $tests = yes ]; then "$root/deploy/install_deps.sh" --tests; else "$root/deploy/install_deps.sh"; fi

# ---- Python ------------------------------------------------------------------------------------
suitable='
import os, sys, sysconfig
import venv, ensurepip
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13) and os.path.exists(header)))'
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  python=
  for candidate in ${KILN_PYTHON:+"$KILN_PYTHON"} python3 /usr/bin/python3; do
    if "$candidate" -c "$suitable" 2>/dev/null; then python=$candidate; break; fi
  done
  [ -n "$python" ] || fail "no Python 3.10 to 3.13 with its headers and venv; name one with KILN_PYTHON=/path/to/python3"
  say "virtual environment: .venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" || fail "$python -m venv failed: remove .venv and run this again"
fi
python="$venv/bin/python"

# Asks for what is not there yet. Arguments: requirements, each NAME or NAME==VERSION.
need() {
  local missing
  missing=$("$python" - "$@" <<'PYTHON'
import sys
from importlib import metadata
for requirement in sys.argv[1:]:
    name, _, version = requirement.partition("==")
    try:
        found = metadata.version(name)
        if version and found.split("+")[0] != version:
            print(requirement)
    except metadata.PackageNotFoundError:
        print(requirement)
PYTHON
  )
  [ -n "$missing" ] || return 0
  say "Python packages: $(echo $missing)"
  # shellcheck disable=SC2086
  "$python" -m pip install -qq --disable-pip-version-check $missing \
    || fail "pip could not install $(echo $missing): check the network (or pip's index settings) and run this again"
}
need torch==2.13.0
need transformers numpy  # a Python of 3.10 has others than one of 3.13
need scikit-build-core==1.1.2 lit==23.1.5
need nvidia-nvptxcompiler==13.0.88  # linked into kiln-worker: PTX to GPUs' machine code
if [ $tests = yes ]; then
  need pytest==9.2.0 pytest-xdist==3.8.0
  need matplotlib
  need expecttest==0.3.0         # torch's operator database imports it
  need ruff==0.17.6 mypy==2.4.1  # tests/lint.sh; other versions judge differently
fi

# ---- Build -------------------------------------------------------------------------------------
memory_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
jobs=$(nproc)
[ "$memory_gib" -ge $((jobs * 2)) ] || jobs=$((memory_gib / 2 > 0 ? memory_gib / 2 : 1))
jobs=${KILN_JOBS:-$jobs}
targets=(kiln_wheel)
[ $tests = no ] || targets=(all)
if [ ! -f "$build/build.ninja" ]; then
  say "configuring build/"
  mkdir -p "$build"
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython3_EXECUTABLE="$python" \
    >"$build/configure.log" 2>&1 \
    || { tail -30 "$build/configure.log" >&2; fail "cmake failed, see build/configure.log; rm -rf build starts afresh"; }
fi
say "building ${targets[*]} with $jobs jobs (the first time takes a quarter of an hour on two cores)"
# A terminal shows ninja's one moving line; a log gets a line a twentieth of the way.
progress() {
  awk '/^\[[0-9]+\/[0-9]+\]/ {
    split(substr($1, 2), n, "[/\\]]"); part = int(20 * n[1] / n[2])
    if (part == last && n[1] != n[2]) next; last = part } { print; fflush() }'
}
build_with_ninja() {
  if [ -t 1 ]; then ninja -C "$build" -j "$jobs" "${targets[@]}"
  else ninja -C "$build" -j "$jobs" "${targets[@]}" 2>&1 | progress; fi
}
build_with_ninja || fail "the build failed, see above. Out of memory? Try KILN_JOBS=1. rm -rf build starts afresh."

# ---- Wheel -------------------------------------------------------------------------------------
stamp="$build/wheel.stamp"
newer=$(find "$root/client/python" "$root/pyproject.toml" "$build/bin/kilnd" "$build/bin/kiln-call" "$build/bin/kiln-worker" \
             "$build/bin/kiln-tuner" "$build/bin/kilnctl" "$build/client/python/_C.abi3.so" -type f \
             ! -name '*.pyc' ! -path '*/python/kiln/_C.abi3.so' -newer "$stamp" 2>/dev/null || true)
if [ ! -f "$stamp" ] || [ -n "$newer" ] || [ ! -x "$venv/bin/kilnd" ]; then
  say "kiln's wheel into .venv"
  touch "$stamp.new"
  "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall "$root" \
    >"$build/wheel.log" 2>&1 || { tail -40 "$build/wheel.log" >&2; fail "the wheel failed, see build/wheel.log"; }
  mv "$stamp.new" "$stamp"
fi
"$python" -c 'import kiln' || fail "kiln does not import from .venv; rm build/wheel.stamp and run this again"
say "ready: .venv/bin/python runs scripts that say torch.compile(model, backend=\"kiln\")"
