// A gemm of few rows with what its factors are made of and what follows it: blocks make the sums
// (skinny_sums.h), of elements that they read or make, and whoever completes an element runs the other stages
// there. What these read of memory that the kernel does not write is in flight while sums are made.
//
// Ownership: borrows all that it is made with. Threads: one. Errors: as the stages' ops.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "compiler/codegen/skinny_sums.h"
#include "compiler/codegen/thread_stages.h"
#include "compiler/schedule/gemm_threads.h"
#include "llvm/ADT/DenseMap.h"

namespace kiln {

class ThreadGemm {
 public:
  ThreadGemm(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory);

  // All of the kernel.
  void Emit();

 private:
  SkinnyFactors Factors();
  llvm::Value* FirstElement(uint32_t load);  // in global memory
  // Of a made factor, by the loops that count its rows or columns.
  struct Made {
    const GemmFactor* factor;
    const std::vector<uint32_t>* loops;
    std::vector<uint32_t> lines;  // ops: loads of elements beside each other along the terms
  };
  Made MadeOf(const GemmFactor& factor, const std::vector<uint32_t>& loops);
  uint64_t LineAlign(uint32_t load) const;  // bytes: of a line's terms of 16 bytes of the factor
  void SetTerm(const Made& made, llvm::Value* number, llvm::Value* term);
  std::array<llvm::Value*, 4> Words(const Made& made, llvm::Value* number, llvm::Value* term, bool aligned);
  llvm::Value* Bits(const Made& made, llvm::ArrayRef<llvm::Value*> lines, unsigned element);
  void SetLoops(const std::vector<uint32_t>& loops, llvm::Value* number);  // taken as one
  void SetPoint(const SkinnyElement& element);
  void LoadFirst(const SkinnyElement& element);
  void Finish(const SkinnyElement& element, llvm::Value* sum);
  // Calls visit(op) for those of the stages behind the sums.
  void ForOps(absl::FunctionRef<void(uint32_t id, const v1::LoopOp& op)> visit);

  KernelContext& k_;
  LoopState& at_;
  LoopBuilder& b_;
  ThreadStages& stages_;
  ThreadMemory& memory_;
  const GemmLoops loops_;
  const SkinnyShape shape_;
  std::vector<llvm::DenseMap<uint32_t, LaneValue>> loaded_;  // by iteration, then by op
};

}  // namespace kiln
