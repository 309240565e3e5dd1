// A kernel whose one loop sums products of two matrices, and whose other stages run once a point: a gemm of
// few rows, with whatever its factors are made of, and whatever follows it at each element. The blocks of a
// GPU share it by tiles of columns, as skinny_schedule.h says; loops that have no such schedule walk rows as
// others do.
//
// Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not allow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/schedule/skinny_schedule.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

// A factor of the products: elements of memory as they lie, or what ops make of others.
struct GemmFactor {
  uint32_t value = 0;         // op: what the product takes, in F32
  uint32_t load = 0;          // op: of elements as they lie
  std::vector<uint32_t> ops;  // that make the value, in order; none: of elements as they lie
};

struct GemmLoops {
  v1::Gemm gemm;  // its factors, of known sizes; a made one's strides are those of whole rows
  std::vector<uint32_t> rows, columns;  // the outer loops that count them, the fastest last
  size_t stage = 0;
  GemmFactor a, b;
  uint32_t sum = 0;  // op: the reduction
};
// No value for any other kernel, and where a size or a stride is not known.
std::optional<GemmLoops> GemmLoopsOf(const KernelFacts& facts);

// The elements of d that a block completes: what it takes of the launch's points. Of a schedule that was
// checked.
uint32_t PointsOfGemmBlock(const KernelFacts& facts, const v1::ThreadSchedule& schedule);

// No value where there is no such schedule.
std::optional<v1::ThreadSchedule> ChooseGemmThreads(const KernelFacts& facts, const Machine& machine);
absl::Status CheckGemmThreads(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule);
// The chosen one, then others that are worth measuring; none where there is none.
std::vector<v1::ThreadSchedule> GemmThreadSchedules(const KernelFacts& facts, const Machine& machine);

}  // namespace kiln
