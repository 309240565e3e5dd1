// Writes LoopGraph expressions into a kernel's own pool, canonically: by first use, sums and products in
// an order that depends on structure alone, and every largest part that holds symbols only as one
// kernel symbol.
//
// Threads: one. Errors: INTERNAL for a leaf that the kernel does not define.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "compiler/schedule/loop_context.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

class KernelExprs {
 public:
  // Kernel op id of the op that an EXPR_INDIRECT leaf names, in the stage being written.
  using IndirectFn = absl::FunctionRef<absl::StatusOr<uint32_t>(LoopOpId)>;

  KernelExprs(LoopContext& context, v1::Kernel* kernel) : context_(context), kernel_(*kernel) {}

  void DefineVar(ExprId leaf, uint32_t number) { vars_[leaf] = number; }
  absl::StatusOr<uint32_t> Write(ExprId id, IndirectFn indirect);
  absl::StatusOr<uint32_t> WriteSize(ExprId id);  // no loop variable, no indirect
  // A kernel symbol for any size, constants too: kernels that differ in this number alone are one.
  uint32_t WriteParameter(ExprId id) { return Symbol(id); }
  // By kernel symbol.
  const std::vector<ExprId>& symbols() const { return symbols_; }

 private:
  uint32_t Intern(v1::ExprOp op, int64_t value, const std::vector<uint32_t>& args);
  uint32_t Symbol(ExprId id);
  absl::StatusOr<uint64_t> StructureOf(ExprId id, IndirectFn indirect);

  LoopContext& context_;
  v1::Kernel& kernel_;
  absl::flat_hash_map<ExprId, uint32_t> vars_;
  std::vector<ExprId> symbols_;
  absl::flat_hash_map<ExprId, uint32_t> symbol_numbers_;
  absl::flat_hash_map<std::string, uint32_t> index_;
};

}  // namespace kiln
