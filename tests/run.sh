#!/usr/bin/env bash
# Sets up as deploy/quickstart.sh does, builds everything and runs every test: C++ and text (ctest, which runs
# lit and FileCheck) and Python (pytest). Ends with one line: N passed, N failed, N skipped.
#   tests/run.sh          every test, the long campaigns in short
#   tests/run.sh --full   the campaigns at full count, then the debug, asan and tsan presets, mutated requests under
#                         asan, two builds of one commit and clang-tidy (hours)
#   tests/run.sh --fast   C++ and text tests only (minutes)
# KILN_BUILD: an existing build directory to test instead, without the set-up. Reports: build/reports.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python_tests=yes
full=no
pytest_options=()
timeout=900
case "${1:-}" in
  "") ;;
  --full) full=yes; export KILN_FULL=1; timeout=7200; pytest_options=(--full) ;;
  --fast) python_tests=no ;;
  *) echo "usage: $0 [--full | --fast]" >&2; exit 2 ;;
esac

if [ -z "${KILN_BUILD:-}" ]; then
  "$root/deploy/setup.sh" --tests
fi
build=${KILN_BUILD:-$root/build}
python="$root/.venv/bin/python"
reports="$build/reports"
mkdir -p "$reports"
rm -f "$reports"/*.xml
export KILN_BUILD="$build"
unset KILN_ADDRESS KILN_FALLBACK KILN_STORE KILN_RUNTIME_DIR

# A runner that dies without a report is one failure, so that nothing passes by not running.
broken=0
run() {  # NAME REPORT COMMAND…
  local name=$1 report=$2 code=0
  shift 2
  echo
  echo "==== $name, after $SECONDS s"
  "$@" || code=$?
  if [ ! -s "$report" ]; then
    echo "$name: no report (exit code $code)" >&2
    broken=$((broken + 1))
  fi
}

# Many tests of daemons wait more than they compute.
processors=$(nproc)
jobs=$((processors + (processors + 1) / 2))
"$root/tests/lint.sh" || broken=$((broken + 1))
run "C++ and text tests" "$reports/ctest.xml" \
  ctest --test-dir "$build" -j "$jobs" --timeout "$timeout" --output-on-failure --progress \
  --output-junit "$reports/ctest.xml"
if [ $python_tests = yes ]; then
  # Each process has a daemon of its own (tests/integration/conftest.py) and takes whole files, whose fixtures are shared.
  processes=$((processors < 4 ? processors : 4))
  run "Python tests" "$reports/pytest.xml" \
    "$python" -m pytest -q -p no:cacheprovider -n "$processes" --dist loadfile --durations=10 "${pytest_options[@]}" \
    --junitxml "$reports/pytest.xml" "$root/tests/integration"
fi
if [ $full = yes ]; then
  for preset in debug asan tsan; do
    run "preset $preset" "$reports/$preset.xml" env -u KILN_FULL "$root/tests/preset.sh" "$preset" "$reports/$preset.xml"
  done
  run "mutated requests under asan" "$reports/mutation.xml" \
    "$root/build-asan/bin/request_mutation_test" --gtest_output="xml:$reports/mutation.xml"
  run "two builds of one commit" "$reports/reproducible.xml" \
    "$root/tests/reproducible_build.sh" kiln-worker "$reports/reproducible.xml"
  "$root/tests/lint.sh" --tidy || broken=$((broken + 1))
fi

echo
"$python" - "$broken" "$reports"/*.xml <<'PYTHON'
import sys
import xml.etree.ElementTree as tree

passed = skipped = 0
failed = int(sys.argv[1])
names = []
for path in sys.argv[2:]:
    for case in tree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed += 1
            names.append(f"{case.get('classname') or ''} {case.get('name')}")
        elif "skipped" in kinds or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
for name in names:
    print("FAILED:", name)
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(1 if failed or not passed else 0)
PYTHON
