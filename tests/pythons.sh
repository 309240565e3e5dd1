#!/usr/bin/env bash
# Whether kiln's one build works with other Pythons and versions of torch than the one it was built beside: unpacks
# deploy/bundle.sh's tarball and runs the tests of real functions, models and processes with each interpreter given.
#   tests/pythons.sh PYTHON…     each a Python 3.10 to 3.13 with torch (2.11 or later), numpy, transformers and pytest
# For one: python3.10 -m venv v310 && v310/bin/pip install torch==2.13.0 numpy transformers pytest
# KILN_BUNDLE: a tarball made elsewhere to test instead.  KILN_BUILD: the build directory to make it from (default:
# build/).  REPORTS: a folder for JUnit XML.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -gt 0 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
export KILN_BUILD=${KILN_BUILD:-$root/build}
work=$(mktemp -d "${TMPDIR:-/tmp}/kiln-pythons-XXXXXX")
trap 'rm -rf "$work"' EXIT
bundle=${KILN_BUNDLE:-$work/kiln.tar.gz}
[ -n "${KILN_BUNDLE:-}" ] || "$root/deploy/bundle.sh" "$bundle"
tar -xzf "$bundle" -C "$work"
unset KILN_ADDRESS KILN_FALLBACK KILN_STORE KILN_RUNTIME_DIR KILN_DAEMON
export PYTHONPATH=$work/kiln

failed=0
for python in "$@"; do
  name=$("$python" -c 'import sys, torch; print("python%d.%d-torch%s" % (*sys.version_info[:2], torch.__version__))') \
    || { echo "pythons: $python has no torch that it can import" >&2; failed=$((failed + 1)); continue; }
  echo
  echo "==== $name"
  # Not beside the checkout's own Python files: the bundle alone is what is asked.
  (cd "$work" && "$python" -m pytest -q -p no:cacheprovider --rootdir "$root/tests/integration" \
    --junitxml "${REPORTS:-$work}/$name.xml" \
    "$root"/tests/integration/test_{functions,aliasing,custom_operators,edge_values,refused_values,package,graph_results,models,dynamic_shapes,processes}.py) \
    || failed=$((failed + 1))
done
[ $failed = 0 ] || { echo "pythons: $failed of $# failed" >&2; exit 1; }
echo "pythons: all $# passed"
