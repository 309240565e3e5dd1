#include "compiler/codegen/thread_emitter.h"

#include "absl/strings/str_cat.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/MDBuilder.h"

namespace kiln {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kSharedAddressSpace = 3;
constexpr char kBodyName[] = "kiln_body";

bool HasAccumulatingStore(const v1::Kernel& kernel) {
  for (const v1::Stage& stage : kernel.stages()) {
    for (const v1::LoopOp& op : stage.ops()) {
      if (static_cast<LoopOpcode>(op.op()) == LoopOpcode::kStore && op.mode() == v1::STORE_ACCUMULATE)
        return true;
    }
  }
  return false;
}

bool IsArg(v1::ReduceKind kind) { return kind == v1::REDUCE_ARGMAX || kind == v1::REDUCE_ARGMIN; }

}  // namespace

ThreadEmitter::ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : KernelEmitter(kernel, target, module),
      block_shares_point_(kernel.schedule().vector_dim() == v1::VECTOR_INNER_LAST &&
                          !HasAccumulatingStore(kernel)) {}

GpuImage ThreadEmitter::Launch() const {
  GpuImage image;
  image.threads = kThreads;
  image.points_per_block = block_shares_point_ ? 1 : kThreads;
  image.buffers = kernel_.buffers_size();
  image.symbols = kernel_.symbol_count();
  return image;
}

absl::Status ThreadEmitter::EmitKernel() {
  absl::Status emitted = Emit();
  if (!emitted.ok()) return emitted;
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), function_->getFunctionType()->params(), false);
  auto* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kGpuEntryName, module_);
  entry->setCallingConv(llvm::CallingConv::PTX_Kernel);
  entry->addFnAttr("nvvm.maxntid", absl::StrCat(kThreads));
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", entry));
  llvm::SmallVector<llvm::Value*, 16> arguments;
  for (llvm::Argument& argument : entry->args()) arguments.push_back(&argument);
  b_.CreateCall(function_, arguments);
  b_.CreateRetVoid();
  return absl::OkStatus();
}

void ThreadEmitter::EmitEntry() {
  llvm::SmallVector<llvm::Type*, 16> parameters(kernel_.buffers_size(), b_.getPtrTy());
  parameters.append(kernel_.symbol_count(), b_.getInt64Ty());
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), parameters, false);
  function_ = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kBodyName, module_);
  function_->addFnAttr(llvm::Attribute::AlwaysInline);
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));

  llvm::MDBuilder metadata(context_);
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain("kernel");
  std::vector<llvm::Metadata*> scopes;
  for (int k = 0; k < kernel_.buffers_size(); ++k) {
    buffers_.push_back(function_->getArg(k));
    scopes.push_back(metadata.createAnonymousAliasScope(domain, absl::StrCat("b", k)));
  }
  for (size_t k = 0; k < scopes.size(); ++k) {
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + k);
    own_scope_.push_back(llvm::MDNode::get(context_, {scopes[k]}));
    other_scopes_.push_back(llvm::MDNode::get(context_, others));
  }
  for (uint32_t k = 0; k < kernel_.symbol_count(); ++k) {
    symbols_.push_back(function_->getArg(kernel_.buffers_size() + k));
  }
  zero_slot_ = Slot(b_.getInt64Ty(), "zero");
  b_.CreateStore(b_.getInt64(0), zero_slot_);
  for (uint32_t extent : kernel_.outer()) outer_extents_.push_back(ScalarIndex(extent));
  for (StageInfo& info : stages_) {
    for (uint32_t extent : info.stage->inner()) info.extents.push_back(ScalarIndex(extent));
  }
}

llvm::Value* ThreadEmitter::Special(llvm::Intrinsic::ID id) {
  return b_.CreateZExt(b_.CreateIntrinsic(b_.getInt32Ty(), id, llvm::ArrayRef<llvm::Value*>{}),
                       b_.getInt64Ty());
}

void ThreadEmitter::Barrier() {
  b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::nvvm_barrier_cta_sync_aligned_all,
                     llvm::ArrayRef<llvm::Value*>{b_.getInt32(0)});
}

void ThreadEmitter::EmitUnits() {
  llvm::Value* points = I64(1);
  for (llvm::Value* extent : outer_extents_) points = b_.CreateNSWMul(points, extent);
  llvm::Value* block = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
  llvm::Value* blocks = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
  llvm::Value* first = block;
  llvm::Value* step = blocks;
  if (!block_shares_point_) {
    first = b_.CreateNSWAdd(b_.CreateNSWMul(block, I64(kThreads)),
                            Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x));
    step = b_.CreateNSWMul(blocks, I64(kThreads));
  }
  variables_.assign(kernel_.outer_size(), nullptr);
  ScalarLoop(first, points, step, "point", [&](llvm::Value* point) {
    llvm::Value* rest = point;
    for (int k = kernel_.outer_size() - 1; k >= 0; --k) {
      variables_[k] = k == 0 ? rest : b_.CreateURem(rest, outer_extents_[k]);
      if (k > 0) rest = b_.CreateUDiv(rest, outer_extents_[k]);
    }
    EmitStages();
  });
}

// What one stage stored another may read, and with other loops it may be another thread that reads it.
void ThreadEmitter::EmitStages() {
  for (const StageInfo& info : stages_) {
    stage_ = &info;
    if (block_shares_point_ && &info != &stages_.front()) Barrier();
    EmitStage(info);
  }
  if (block_shares_point_ && stages_.size() > 1) Barrier();
}

void ThreadEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                               Body body) {
  if (!block_shares_point_) {
    KernelEmitter::VectorLoop(variable, lo, hi, unroll, body);
    return;
  }
  llvm::Value* thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  ScalarLoop(b_.CreateNSWAdd(lo, thread), hi, I64(kThreads), "shared", [&](llvm::Value* i) {
    variables_[variable] = i;
    body();
  });
}

llvm::Value* ThreadEmitter::SharedSlots(llvm::Type* type, const char* name) {
  auto* array = llvm::ArrayType::get(type, kThreads);
  auto* slots = new llvm::GlobalVariable(*module_, array, false, llvm::GlobalValue::InternalLinkage,
                                         llvm::UndefValue::get(array), name, nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kSharedAddressSpace);
  slots->setAlignment(llvm::Align(16));
  return slots;
}

void ThreadEmitter::CombineOverBlock(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                                     llvm::Value** position) {
  // i1 has no shared memory form of its own.
  const bool is_bool = (*value)->getType()->isIntegerTy(1);
  llvm::Type* type = is_bool ? b_.getInt8Ty() : (*value)->getType();
  llvm::Value* slots = SharedSlots(type, "partial");
  llvm::Value* positions = *position == nullptr ? nullptr : SharedSlots(b_.getInt64Ty(), "partial_position");
  llvm::Value* thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
  const auto at = [&](llvm::Value* base, llvm::Type* element, llvm::Value* index) {
    return b_.CreateInBoundsGEP(element, base, {index});
  };
  const auto put = [&](llvm::Value* index, llvm::Value* v, llvm::Value* p) {
    b_.CreateStore(is_bool ? b_.CreateZExt(v, type) : v, at(slots, type, index));
    if (positions != nullptr) b_.CreateStore(p, at(positions, b_.getInt64Ty(), index));
  };
  const auto get = [&](llvm::Value* index, llvm::Value** p) -> llvm::Value* {
    llvm::Value* v = b_.CreateLoad(type, at(slots, type, index));
    if (positions != nullptr) *p = b_.CreateLoad(b_.getInt64Ty(), at(positions, b_.getInt64Ty(), index));
    return is_bool ? b_.CreateTrunc(v, b_.getInt1Ty()) : v;
  };
  put(thread, *value, *position);
  Barrier();
  for (unsigned width = kThreads / 2; width >= 1; width /= 2) {
    If(b_.CreateICmpULT(thread, I64(width)), "fold", [&] {
      llvm::Value *mine_position = nullptr, *other_position = nullptr;
      llvm::Value* mine = get(thread, &mine_position);
      llvm::Value* other = get(b_.CreateNSWAdd(thread, I64(width)), &other_position);
      if (positions != nullptr) {
        CombineArg(accumulator.kind, kept, &mine, &mine_position, other, other_position, true, nullptr);
      } else {
        mine = Combine(accumulator.kind, kept, mine, other);
      }
      put(thread, mine, mine_position);
    });
    Barrier();
  }
  *value = get(I64(0), position);
  Barrier();
}

void ThreadEmitter::FinishAccumulators(const StageInfo& info) {
  const bool shared = block_shares_point_ && !info.extents.empty() && !info.has_scan;
  for (const Accumulator& accumulator : accumulators_) {
    if (static_cast<LoopOpcode>(ops_[accumulator.op]->op()) != LoopOpcode::kReduce) continue;
    const v1::DType kept = accumulator.widened ? v1::F64 : accumulator.dtype;
    const bool arg = IsArg(accumulator.kind);
    llvm::Value* value = b_.CreateLoad(accumulator.value[0]->getAllocatedType(), accumulator.value[0]);
    llvm::Value* position =
        arg ? b_.CreateLoad(accumulator.position[0]->getAllocatedType(), accumulator.position[0]) : nullptr;
    if (shared) CombineOverBlock(accumulator, kept, &value, &position);
    if (accumulator.widened) value = b_.CreateFPTrunc(value, b_.getFloatTy());
    values_[accumulator.op] = {arg ? position : value, false};
  }
  accumulators_.clear();
}

void ThreadEmitter::FailWhere(llvm::Value* bad, int32_t, uint32_t, llvm::Value*, llvm::Value*, bool) {
  If(Any(bad), "fail",
     [&] { b_.CreateIntrinsic(b_.getVoidTy(), llvm::Intrinsic::trap, llvm::ArrayRef<llvm::Value*>{}); });
}

}  // namespace kiln
