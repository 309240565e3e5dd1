#!/usr/bin/env bash
# Generated kernels on this machine's NVIDIA GPU against the interpreter and the reference: the conformance suite,
# 2,000 random graphs and 1,000 random kernels over all cores, then the suite, 200 graphs and 40 kernels under
# compute-sanitizer's memcheck and racecheck where that is installed, and a part of PyTorch's operator database in
# float32 and bfloat16 by the Python that has kiln ($KILN_PYTHON, default .venv's). Minutes.
#   tests/gpu.sh [BIN]    BIN: where backend_conformance_test and the others lie (default: build/bin)
# Logs: BIN/../gpu-reports, or $KILN_REPORTS. Ends with 1 when anything failed, 2 without a GPU.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${1:-$root/build/bin}
logs=${KILN_REPORTS:-$bin/../gpu-reports}
jobs=$(nproc)
conformance="$bin/backend_conformance_test --gtest_filter=*/gpu*"
graphs="$bin/random_graphs_test --gtest_filter=*Gpu*"
kernels="$bin/kernel_property_test --gtest_filter=*/gpu*"
for program in backend_conformance_test random_graphs_test kernel_property_test; do
  [ -x "$bin/$program" ] || { echo "$bin/$program is missing: run tests/run.sh --fast" >&2; exit 2; }
done
command -v nvidia-smi >/dev/null && nvidia-smi -L || { echo "no NVIDIA GPU here" >&2; exit 2; }
mkdir -p "$logs"
rm -f "$logs"/*.log
failed=0

# A log that shows no test passed is a failure, so that nothing passes by being skipped.
check() {  # WHAT LOG…
  local what=$1 bad=0
  shift
  for log in "$@"; do
    if ! grep -q '^\[  PASSED  \] [1-9]' "$log" || grep -q '^\[  FAILED  \]\|^========= .*SUMMARY: [1-9]' "$log"; then
      bad=$((bad + 1))
      echo "--- $log" >&2
      grep -E 'KILN_SEED|Which is|FAILED|SUMMARY|Failure' "$log" | head -5 >&2 || tail -3 "$log" >&2
    fi
  done
  echo "$what: $(($# - bad)) of $# runs passed, $SECONDS s"
  failed=$((failed + bad))
}

spread() {  # WHAT NAME FIRST CASES COMMAND…: in as many processes as there are cores
  local what=$1 name=$2 first=$3 each=$((($4 + jobs - 1) / jobs)) i
  shift 4
  for ((i = 0; i < jobs; ++i)); do
    KILN_SEED=$((first + i * each)) KILN_CASES=$each "$@" >"$logs/$name.$i.log" 2>&1 &
  done
  wait
  check "$what" "$logs/$name".*.log
}

$conformance >"$logs/conformance.log" 2>&1 || true
check "conformance suite" "$logs/conformance.log"
spread "2,000 random graphs" graphs 1 2000 $graphs
spread "1,000 random kernels" kernels 1000 1000 $kernels

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1 || true)
if [ -z "$sanitizer" ]; then
  echo "compute-sanitizer is not installed (CUDA Toolkit): not run" >&2
else
  for tool in memcheck racecheck; do
    $sanitizer --tool $tool $conformance >"$logs/$tool.conformance.log" 2>&1 &
    KILN_CASES=200 $sanitizer --tool $tool $graphs >"$logs/$tool.graphs.log" 2>&1 &
    KILN_CASES=40 $sanitizer --tool $tool $kernels >"$logs/$tool.kernels.log" 2>&1 &
  done
  wait
  check "compute-sanitizer" "$logs"/memcheck.*.log "$logs"/racecheck.*.log
fi

python=${KILN_PYTHON:-$root/.venv/bin/python}
if "$python" -c 'import kiln, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  if "$python" "$root/tests/campaign/opdb.py" --device cuda --dtypes float32,bfloat16 --samples 1 --ways static \
      --part "${KILN_GPU_PART:-0.2}" --limit-seconds 300 >"$logs/operators.log" 2>&1; then
    echo "operator database: nothing bad, $SECONDS s"
  else
    tail -20 "$logs/operators.log" >&2
    failed=$((failed + 1))
  fi
else
  echo "operator database: $python has no kiln, or no torch with CUDA: not run" >&2
fi
[ $failed -eq 0 ] || exit 1
