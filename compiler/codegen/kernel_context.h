// The context of emitting one kernel: the kernel, the target, the module, the builder, and, from the entry
// on, the launch's arguments.
//
// Ownership: borrows kernel, target and module, which must outlive it. Threads: one. Errors: emitting ends
// with the first `Fail`; code that is emitted after it is discarded.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/codegen/loop_builder.h"
#include "compiler/codegen/math.h"
#include "compiler/codegen/target_operations.h"
#include "compiler/ir/ops.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/vector_target.h"
#include "kiln/v1/kernel.pb.h"
#include "llvm/IR/Module.h"

namespace kiln {

struct StageInfo : StageFacts {
  std::vector<llvm::Value*> extents;  // of its loops
};

struct KernelContext {
  KernelContext(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);
  KernelContext(const KernelContext&) = delete;
  KernelContext& operator=(const KernelContext&) = delete;

  void Fail(absl::Status why);

  llvm::Type* ScalarType(v1::DType dtype);  // BOOL: i1; F16, BF16: i16
  llvm::Type* MemoryType(v1::DType dtype);  // BOOL: i8
  v1::DType DTypeOf(uint32_t op) const { return facts.op(op).dtype(); }
  v1::DType BufferDType(const v1::LoopOp& access) const {
    return kernel.buffers(static_cast<int>(access.buffer())).dtype();
  }
  const StageInfo& StageOf(uint32_t op) const;
  int NumberOf(const StageInfo& info) const { return static_cast<int>(&info - stages.data()); }

  const v1::Kernel& kernel;
  const VectorTarget& target;
  const TargetOperations& operations;
  const KernelFacts facts;
  llvm::Module* const module;
  LoopBuilder b;
  MathEmitter math;
  absl::Status status;

  std::vector<llvm::Value*> buffers;
  std::vector<llvm::Value*> symbols;
  std::vector<llvm::Value*> outer_extents;
  std::vector<StageInfo> stages;
};

}  // namespace kiln
