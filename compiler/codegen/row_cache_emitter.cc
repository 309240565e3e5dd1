// A row's values that two stages compute alike: exponentials of a softmax, whose sum must be known before any
// is divided by it. The first stage keeps them on the stack, which for rows of this size is the second-level
// cache; the other one reads them there, not the row, whose exponentials would cost more than memory does.
#include <algorithm>
#include <optional>

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kKeptBytesMax = 256 << 10;  // of a stack of some MiB
constexpr int kComparedOpsMax = 64;           // of a value's expression

}  // namespace

// Whether two ops give the same values in loops of the same extents.
bool KernelEmitter::SameValue(uint32_t a, uint32_t b) const {
  int budget = kComparedOpsMax;
  return SameValue(a, b, &budget);
}

bool KernelEmitter::SameValue(uint32_t a, uint32_t b, int* budget) const {
  if (a == b) return true;
  const v1::LoopOp& x = *ops_[a];
  const v1::LoopOp& y = *ops_[b];
  if (--*budget < 0 || x.op() != y.op() || x.dtype() != y.dtype() || x.mode() != y.mode() ||
      x.bits() != y.bits() || x.index() != y.index() || x.buffer() != y.buffer() ||
      x.args_size() != y.args_size()) {
    return false;
  }
  switch (static_cast<LoopOpcode>(x.op())) {
    case LoopOpcode::kReduce:
    case LoopOpcode::kScan:
    case LoopOpcode::kStore:
    case LoopOpcode::kCheckIndex: return false;
    case LoopOpcode::kLoad:
      if (!IsSourceLoad(x)) return false;
      break;
    case LoopOpcode::kIndexExpr:
      if (DependsOnOps(x.index())) return false;
      break;
    default: break;
  }
  for (int k = 0; k < x.args_size(); ++k) {
    if (!SameValue(x.args(k), y.args(k), budget)) return false;
  }
  return true;
}

// The first exponential of an earlier stage over the same row that is the one asked for.
std::optional<uint32_t> KernelEmitter::EarlierExponential(const StageInfo& info, uint32_t exponential) const {
  for (const StageInfo& earlier : stages_) {
    if (&earlier == &info) return std::nullopt;
    if (earlier.has_scan || earlier.stage->inner_size() != 1 ||
        earlier.stage->inner(0) != info.stage->inner(0)) {
      continue;
    }
    for (int k = 0; k < earlier.stage->ops_size(); ++k) {
      const uint32_t id = earlier.first_op + k;
      if (IsExponential(static_cast<LoopOpcode>(ops_[id]->op())) && SameValue(id, exponential)) return id;
    }
  }
  return std::nullopt;
}

void KernelEmitter::ChooseRowCache() {
  if (on_gpu_ || vector_lanes_ == 1 || kernel_.schedule().vector_dim() != v1::VECTOR_INNER_LAST) return;
  if (IndexesByValues()) return;
  const int64_t elements_max = std::min(kKeptBytesMax, cost::SecondLevelRowBytesMax(target_.machine)) / 4;
  for (const StageInfo& info : stages_) {
    if (info.has_scan || info.stage->inner_size() != 1) continue;
    const int64_t elements = ConstantExpr(info.stage->inner(0)).value_or(0);
    if (elements < vector_lanes_ || elements > elements_max) continue;
    for (int k = 0; k < info.stage->ops_size(); ++k) {
      const uint32_t id = info.first_op + k;
      if (!IsExponential(static_cast<LoopOpcode>(ops_[id]->op())) || DTypeOf(id) != v1::F32) continue;
      const std::optional<uint32_t> earlier = EarlierExponential(info, id);
      if (!earlier) continue;
      // A masked vector is kept whole, so the last one has room of its own.
      llvm::AllocaInst* slots = Slot(llvm::ArrayType::get(b_.getFloatTy(), elements + vector_lanes_), "kept");
      slots->setAlignment(llvm::Align(target_.machine.cpu.cache_line_bytes));
      function_->addFnAttr("probe-stack", "inline-asm");  // a frame larger than the guard behind a stack
      row_cache_ = {.writer = *earlier, .reader = id, .slots = slots};
      SkipArgumentsOf(info, id);
      return;
    }
  }
}

// What only the value that is read back was computed from.
void KernelEmitter::SkipArgumentsOf(const StageInfo& info, uint32_t reader) {
  std::vector<bool> needed(ops_.size());
  for (int k = info.stage->ops_size() - 1; k >= 0; --k) {
    const uint32_t id = info.first_op + k;
    const auto opcode = static_cast<LoopOpcode>(ops_[id]->op());
    const bool acts =
        opcode == LoopOpcode::kStore || opcode == LoopOpcode::kReduce || opcode == LoopOpcode::kCheckIndex;
    const bool part = id < reader && !acts && !needed[id];
    if (part) {
      skipped_.insert(id);
    } else if (id != reader) {
      for (uint32_t arg : ops_[id]->args()) needed[arg] = true;
    }
  }
}

llvm::Value* KernelEmitter::KeptSlot() {
  llvm::Value* position = variables_[kernel_.outer_size()];
  return b_.CreateInBoundsGEP(b_.getFloatTy(), row_cache_->slots, position);
}

void KernelEmitter::KeepValue(uint32_t id) {
  if (!row_cache_ || row_cache_->writer != id) return;
  b_.CreateAlignedStore(Broadcast(values_[id]), KeptSlot(), llvm::Align(vector_lanes_ * sizeof(float)));
}

bool KernelEmitter::ReadKeptValue(uint32_t id) {
  if (!row_cache_ || row_cache_->reader != id) return false;
  values_[id] = {KeptTimes(nullptr), true};
  return true;
}

// The kept value, by its row's scale where there is one, times a number of the row or null.
llvm::Value* KernelEmitter::KeptTimes(llvm::Value* factor) {
  llvm::Type* type = Wide(b_.getFloatTy());
  llvm::Value* value = b_.CreateAlignedLoad(type, KeptSlot(), llvm::Align(vector_lanes_ * sizeof(float)));
  if (shifted_ && shifted_->scale != nullptr) {
    llvm::Value* scale = b_.CreateLoad(b_.getFloatTy(), shifted_->scale);
    factor = factor == nullptr ? scale : b_.CreateFMul(scale, factor);
  }
  return factor == nullptr ? value : b_.CreateFMul(value, Splat(factor));
}

}  // namespace kiln
