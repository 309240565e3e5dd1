#include "compiler/codegen/kernel_emitter.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "compiler/support/kernel_abi.h"

namespace kiln {

KernelEmitter::KernelEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : k_(kernel, target, module),
      at_(&k_.b, k_.facts.ops().size()),
      b_(k_.b),
      index_(&k_, &at_),
      failure_(&b_, module),
      ops_(&k_, &at_, &index_, &failure_),
      memory_(&k_, &at_, &index_),
      reductions_(&k_, &at_, /*shared=*/nullptr),
      cache_(&k_, &at_),
      stages_(&k_, &at_, &ops_, &memory_, &reductions_, &cache_),
      shifted_(&k_, &at_, &stages_, &reductions_, &cache_),
      pipeline_(&k_, &at_, &stages_, &reductions_, &shifted_),
      tiles_(&k_, &at_, &stages_, &memory_) {
  at_.vector_lanes = kernel.schedule().vectors().lanes();
}

absl::Status KernelEmitter::Emit() {
  if (!k_.facts.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  llvm::Function* function = Entry();
  EnterParts();
  Units(function->getArg(1), function->getArg(2));
  memory_.FenceNontemporalStores();
  b_.CreateRet(b_.getInt32(KILN_OK));
  return k_.status;
}

llvm::Function* KernelEmitter::Entry() {
  llvm::Type* ptr = b_.getPtrTy();
  llvm::Type* i64 = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), {ptr, i64, i64, b_.getInt32Ty()}, false);
  auto* function =
      llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kKernelEntryName, k_.module);
  function->setVisibility(llvm::GlobalValue::HiddenVisibility);
  llvm::Value* args = function->getArg(0);
  args->setName("args");
  function->getArg(1)->setName("begin");
  function->getArg(2)->setName("end");
  b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));

  const auto invariant_load = [&](llvm::Type* load_type, llvm::Value* from, size_t bytes,
                                  const llvm::Twine& name) {
    llvm::LoadInst* load = b_.CreateAlignedLoad(
        load_type, b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), from, bytes), llvm::Align(8), name);
    load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(b_.getContext(), {}));
    return load;
  };
  llvm::Value* table = invariant_load(ptr, args, offsetof(KilnArgs, buffers), "buffers");
  for (int k = 0; k < k_.kernel.buffers_size(); ++k) {
    k_.buffers.push_back(invariant_load(ptr, table, 8 * k, absl::StrCat("b", k)));
  }
  if (k_.kernel.symbol_count() > 0) {
    llvm::Value* symbols = invariant_load(ptr, args, offsetof(KilnArgs, symbols), "symbols");
    for (uint32_t k = 0; k < k_.kernel.symbol_count(); ++k) {
      k_.symbols.push_back(invariant_load(i64, symbols, 8 * k, absl::StrCat("s", k)));
    }
  }
  return function;
}

void KernelEmitter::EnterParts() {
  memory_.Enter();
  index_.EmitExtents();
  memory_.EmitConditions();
  cache_.Enter();
  pipeline_.Enter(cache_);
}

// Units are the points of the parallel loops, the last one in chunks.
void KernelEmitter::Units(llvm::Value* begin, llvm::Value* end) {
  const uint32_t parallel = k_.kernel.schedule().parallel_dims();
  at_.variables.assign(k_.kernel.outer_size(), nullptr);
  if (parallel == 0) {
    b_.If(b_.CreateICmpSLT(begin, end), "unit", [&] { OuterFrom(0); });
    return;
  }
  llvm::Value* chunk = b_.I64(std::max<uint32_t>(1, k_.kernel.schedule().chunk()));
  llvm::Value* extent = k_.outer_extents[parallel - 1];
  const auto clamp = [&](llvm::Value* v) { return b_.CreateSelect(b_.CreateICmpSLT(v, extent), v, extent); };
  if (parallel == 1) {  // neighbouring units are one range
    OuterRange(0, clamp(b_.CreateNSWMul(begin, chunk)), clamp(b_.CreateNSWMul(end, chunk)));
    return;
  }
  llvm::Value* chunks = b_.CreateUDiv(b_.CreateAdd(extent, b_.CreateSub(chunk, b_.I64(1))), chunk, "chunks");
  b_.ScalarLoop(begin, end, b_.I64(1), "unit", [&](llvm::Value* unit) {
    llvm::Value* rest = b_.CreateUDiv(unit, chunks);
    llvm::Value* lo = b_.CreateNSWMul(b_.CreateURem(unit, chunks), chunk, "lo");
    for (int k = static_cast<int>(parallel) - 2; k >= 0; --k) {
      at_.variables[k] = k == 0 ? rest : b_.CreateURem(rest, k_.outer_extents[k]);
      if (k > 0) rest = b_.CreateUDiv(rest, k_.outer_extents[k]);
    }
    OuterRange(parallel - 1, lo, clamp(b_.CreateNSWAdd(lo, chunk)));
  });
}

void KernelEmitter::OuterFrom(uint32_t loop) {
  if (loop == static_cast<uint32_t>(k_.kernel.outer_size())) {
    Stages();
    return;
  }
  OuterRange(loop, b_.I64(0), k_.outer_extents[loop]);
}

void KernelEmitter::OuterRange(uint32_t loop, llvm::Value* lo, llvm::Value* hi) {
  const bool last = loop + 1 == static_cast<uint32_t>(k_.kernel.outer_size());
  if (last && k_.kernel.schedule().vector_dim() == v1::VECTOR_OUTER_LAST) {
    stages_.VectorLoop(loop, lo, hi, 1, [&] { Stages(); });
    return;
  }
  if (last && pipeline_.exists()) {
    pipeline_.Rows(lo, hi);
    return;
  }
  if (loop + 2 == static_cast<uint32_t>(k_.kernel.outer_size()) && tiles_.exists()) {
    tiles_.Tiles(loop, lo, hi, [&] { Stages(); });
    return;
  }
  b_.ScalarLoop(lo, hi, b_.I64(1), "outer", [&](llvm::Value* i) {
    at_.variables[loop] = i;
    OuterFrom(loop + 1);
  });
}

void KernelEmitter::Stages() {
  for (const StageInfo& info : k_.stages) {
    if (!shifted_.IsDone(info)) shifted_.Stage(info);
  }
}

}  // namespace kiln
