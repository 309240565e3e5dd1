// Runs what the GPU back-end emits on this machine's processor: its LLVM IR, compiled for x86 with a GPU's
// instructions replaced by calls. Threads of a block are coroutines, resumed in random order, one block after
// the other; blocks of a cluster run together, with shared memory of their own.
//
// What it shows: the code of ThreadEmitter, of SkinnyGemm and below, with barriers, shuffles and matrix
// instructions (threads that meet at different ones, or wait for one that has ended, are an error). What it
// does not: LLVM's NVPTX back-end, ptxas, approximate instructions bit for bit, a cluster's barrier that is
// not arrived at before it is waited for, and threads that truly run at the same time. Threads: one. Errors:
// UNIMPLEMENTED for an instruction that has no replacement, FAILED_PRECONDITION for a kernel that traps,
// INTERNAL for the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/codegen/skinny_gemm.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::testing {

// A kernel whose schedule has members is launched for these.
struct SimulatedMember {
  std::vector<void*> buffers;
  int64_t units = 0;
};

class SimulatedKernel {
 public:
  // Without `barriers` those of a block let every thread pass at once: a control.
  static absl::StatusOr<std::unique_ptr<SimulatedKernel>> Create(const v1::Kernel& kernel,
                                                                 bool barriers = true);
  // Run it with as many units as its launch has, and no fewer blocks.
  static absl::StatusOr<std::unique_ptr<SimulatedKernel>> Create(const v1::Gemm& gemm,
                                                                 const v1::SkinnySchedule& schedule);
  ~SimulatedKernel();

  int64_t units() const;  // of a gemm

  // All points of the outer domain, of which there are `units`, on at most `blocks_max` blocks; a gemm's, on
  // all that it has.
  absl::Status Run(const std::vector<void*>& buffers, const std::vector<int64_t>& symbols, int64_t units,
                   int64_t blocks_max, std::mt19937_64& random) const;
  // The same for each member.
  absl::Status RunMembers(const std::vector<SimulatedMember>& members, const std::vector<int64_t>& symbols,
                          int64_t blocks_max, std::mt19937_64& random) const;

 private:
  struct Code;
  SimulatedKernel();
  absl::Status Translate();
  const std::unique_ptr<Code> code_;
};

}  // namespace kiln::testing
