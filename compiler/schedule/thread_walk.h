// How the loops of a kernel run over a GPU's threads by a schedule: what rules and emitter both ask.
//
// Threads: pure functions. Errors: none; a schedule is taken to have passed the checks of the rules that it
// is asked about. Limits: as KernelFacts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "compiler/schedule/kernel_facts.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kBlockThreads = 256;         // of a usual block
inline constexpr int64_t kAccessBytes = 16;            // the widest access of a thread
inline constexpr int64_t kIterationsAtOnce = 8;        // whose loads are in flight, of cheap bodies
inline constexpr int64_t kLongIterationsAtOnce = 4;    // likewise, of others
inline constexpr int64_t kUsualRow = 4096;             // where a length is a symbol
inline constexpr int64_t kLoopMax = int64_t{1} << 30;  // numbers that 32 bits keep

bool IsAccess(const v1::LoopOp& op);  // a load or a store
bool IsAccumulatingStore(const v1::LoopOp& op);
bool HasAccumulatingStore(const KernelFacts& facts);
bool IsRead(const KernelFacts& facts, uint32_t buffer);
bool HasInnerLoops(const KernelFacts& facts);
bool AllCheap(const KernelFacts& facts);
bool DrawsNumbers(const KernelFacts& facts);  // at random
// A load that any op of its stage may come after.
bool MayLoadFirst(const KernelFacts& facts, const v1::LoopOp& op);

// At most `most`, which it is also where it is not known.
int64_t PointsEstimate(const KernelFacts& facts, int64_t most);

// The loop that a stage's vectors run along.
uint32_t VectorVariable(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage);

bool IsFlattened(const v1::ThreadSchedule& schedule, size_t stage);
// Vectors of the loops that a block's threads share; at least 1. With `rows`.
int64_t IterationsOf(const KernelFacts& facts, const v1::ThreadSchedule& schedule, size_t stage);
int64_t MostIterations(const KernelFacts& facts, const v1::ThreadSchedule& schedule);  // of any stage

bool IsStripSum(const v1::ThreadSchedule& schedule, uint32_t op);

uint32_t ThreadsOfBlock(const v1::ThreadSchedule& schedule);
uint32_t PointsOfBlock(const v1::ThreadSchedule& schedule);  // strips, where a block takes those; no gemm's

absl::Status RefuseThreads(absl::string_view what);

}  // namespace kiln
