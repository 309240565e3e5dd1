#!/usr/bin/env python3
"""Limits that stand elsewhere than in their tree's header: constants that end in Max or Min, but for thresholds of
heuristics and facts of formats and devices. tests/lint.sh and tests/integration/test_limits.py ask `faults` about the
sources.
"""
import os
import re
import sys
from collections.abc import Mapping

from class_sizes import code_of, sources

# By the tree whose limits are in it.
HEADERS = {"cache": "cache/cache_limits.h", "client": "client/client_limits.h",
           "compiler": "compiler/support/compiler_limits.h", "server": "server/server_limits.h"}
# Much is rebuilt where one of them changes, so they know nothing else.
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include (?!<cstddef>|<cstdint>)(\S+)', re.MULTILINE)

# A constant with its value, which may follow in brackets.
NAME = r"\b(k(?:\w*(?:Max|Min)|(?:Max|Min)[A-Z]\w*))"
CONSTANT = re.compile(rf"{NAME}\b(?:<[^<>;]*>)?\s*(?:\[\w*\]\s*)?(?:=(?!=)|\{{)"
                      rf"|\bconst(?:expr|init)?\b[^;=(){{}}]*{NAME}\s*\(")
# Between two tries, of which each waits longer.
PAUSE = re.compile(r"k\w*PauseM(?:ax|in)$")

# Folders whose constants are other things.
FOLDERS = {
    "compiler/schedule": "numbers of a schedule",
    "compiler/target": "the cost model: from where on something pays",
}
# "file: name", and what it is instead.
OTHER = {
    "cache/budget/eviction_plan.cc: kKeepFactorMax": "how much a compile's cost weighs",
    "cache/chain/old_stores.cc: kBuildDigitsMin": "a fact of the names of stores",
    "cache/engine/directory_size.cc: kLooksAnewBytesMin": "from where on a new look pays",
    "cache/engine/rocksdb_store.cc: kBlobBytesMin": "from where on a blob file pays",
    "cache/shared/tier_writer.cc: kBytesOfJobMin": "what a small write is counted as",
    "client/admin/doctor_checks.h: kClockSkewMsMax": "from where on a clock is said to be wrong",
    "client/runtime/arena.cc: kLargestMin": "from where on an arena pays",
    "client/runtime/arena.h: kArenaExtraBytesMin": "what an arena may cost where it is little",
    "client/runtime/arena_plan.cc: kBytesMax": "a processor's address space",
    "client/runtime/cublas_lt.h: kWorkspaceMax": "a number of cuBLASLt's interface",
    "client/runtime/cublas_lt_gemms.cc: kAlignmentMax": "the coarsest that the library tells apart",
    "client/runtime/cudnn_convolutions.cc: kAlignmentMax": "the coarsest that the library tells apart",
    "client/runtime/cudnn_convolutions.cc: kElementsMax": "what cuDNN's 32 bits count",
    "client/runtime/program_load.cc: kGpuArenaBytesMax": "up to where an arena pays",
    "client/runtime/torch_gemms.cc: kUnsplitSumMax": "up to where one launch pays",
    "client/tuner/convolution_bench.cc: kSamplesMax": "elements that tell a right result",
    "client/tuner/convolution_bench.cc: kSamplesMin": "elements that tell a right result",
    "client/tuner/gpu.cc: kFlushBytesMin": "what a device's cache has at most",
    "compiler/codegen/constant_loads.cc: kConstantsMax": "registers that a loop leaves",
    "compiler/codegen/shifted_reduction_emitter.cc: kExponentMax": "numerics: how good an estimate is",
    "compiler/codegen/shifted_reduction_emitter.cc: kSquaresMax": "numerics: how good an estimate is",
    "compiler/graph/expr.cc: kUnrolledMax": "up to where a product says more than a power",
    "compiler/passes/channel_moments.cc: kBlockMax": "up to where a block's error is small",
    "compiler/passes/decompose_pooling.cc: kStepMax": "what 32 bits keep",
    "compiler/support/glibc.h: kMappedBytesMin": "a fact of glibc's malloc",
    "compiler/support/member_table.h: kBytesMax": "a launch's parameters, on every device",
    "server/flight/forward_table.h: kComeAgainMax": "between two tries",
    "server/flight/refusals.cc: kPushbackQuotaSecondsMax": "between two tries, as a refusal tells it",
    "server/flight/refusals.cc: kPushbackSecondsMax": "between two tries, as a refusal tells it",
    "server/flight/refusals.cc: kPushbackSecondsMin": "between two tries, as a refusal tells it",
    "server/pool/zygote.cc: kReapStepMax": "between two looks",
    "server/pool/zygote.cc: kReapStepMin": "between two looks",
    "server/schedule/fair_queue.h: kSecondsMin": "what a short task is counted as",
}


def faults(root: str | os.PathLike[str], other: Mapping[str, str]) -> list[str]:
    """What is wrong, a line each."""
    found: list[str] = []
    used: set[str] = set()
    for file, path in sources(root):
        with open(path, encoding="utf-8") as source:
            text = source.read()
        if file in HEADERS.values():
            found += [f"{file}: it includes {included}" for included in INCLUDE.findall(text)]
            continue
        if os.path.dirname(file) in FOLDERS:
            continue
        code = code_of(text)
        for match in CONSTANT.finditer(code):
            name = match[1] or match[2]
            row = f"{file}: {name}"
            if row in other:
                used.add(row)
            elif not PAUSE.match(name):
                line = code.count("\n", 0, match.end()) + 1
                found.append(f"{file}:{line}: {name} is a limit, so it stands in {HEADERS[file.split('/')[0]]}; or "
                             "tests/limits.py says what it is instead")
    return found + [f"tests/limits.py: nothing is {row}" for row in sorted(other.keys() - used)]


def main() -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, OTHER)
    print("\n".join(found) or "limits: in one place a tree", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
