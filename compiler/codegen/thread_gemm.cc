#include "compiler/codegen/thread_gemm.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/thread_walk.h"

namespace kiln {
namespace {

constexpr unsigned kGlobal = 1;  // address space

}  // namespace

ThreadGemm::ThreadGemm(KernelContext* context, LoopState* state, ThreadStages* stages, ThreadMemory* memory)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      memory_(*memory),
      loops_(*GemmLoopsOf(k_.facts)),
      shape_(*SkinnyShape::Of(loops_.gemm, k_.kernel.schedule().threads().gemm())) {}

llvm::Value* ThreadGemm::FirstElement(uint32_t load) {
  at_.stage = &k_.stages[loops_.stage];
  at_.variables.assign(k_.kernel.outer_size() + 1, b_.I64(0));
  return b_.CreateAddrSpaceCast(memory_.Address(k_.facts.op(load)), b_.getPtrTy(kGlobal));
}

uint64_t ThreadGemm::LineAlign(uint32_t load) const {
  const auto bytes = static_cast<uint64_t>(ir::ByteWidth(k_.facts.op(load).dtype()));
  return std::min<uint64_t>(kAccessBytes, bytes * static_cast<uint64_t>(shape_.gemm.terms()));
}

// Lines begin at multiples of their alignment where the first one does.
ThreadGemm::Made ThreadGemm::MadeOf(const GemmFactor& factor, const std::vector<uint32_t>& loops) {
  Made made{&factor, &loops, {}};
  for (const uint32_t id : factor.ops) {
    const v1::LoopOp& op = k_.facts.op(id);
    if (k_.facts.opcode(id) != LoopOpcode::kLoad || op.args_size() > 0 || op.dtype() == v1::BOOL) continue;
    if (k_.facts.CoefficientOf(op.index(), static_cast<uint32_t>(k_.kernel.outer_size())) != 1) continue;
    const int64_t elements = static_cast<int64_t>(LineAlign(id)) / ir::ByteWidth(op.dtype());
    const bool begins_aligned = std::all_of(loops.begin(), loops.end(), [&](uint32_t loop) {
      const std::optional<int64_t> stride = k_.facts.CoefficientOf(op.index(), loop);
      return stride && *stride % elements == 0;
    });
    if (begins_aligned) made.lines.push_back(id);
  }
  return made;
}

void ThreadGemm::SetTerm(const Made& made, llvm::Value* number, llvm::Value* term) {
  at_.stage = &k_.stages[loops_.stage];
  at_.variables.assign(k_.kernel.outer_size() + 1, b_.I64(0));
  SetLoops(*made.loops, number);
  at_.variables.back() = b_.CreateZExt(term, b_.getInt64Ty());
}

// `lines`: what was loaded of each, of which this is an element.
llvm::Value* ThreadGemm::Bits(const Made& made, llvm::ArrayRef<llvm::Value*> lines, unsigned element) {
  for (size_t k = 0; k < lines.size(); ++k)
    at_.values[made.lines[k]] = {b_.CreateExtractElement(lines[k], element), false};
  for (const uint32_t op : made.factor->ops) {
    if (std::find(made.lines.begin(), made.lines.end(), op) == made.lines.end())
      stages_.Op(op, k_.facts.op(op));
  }
  const v1::DType dtype = loops_.gemm.dtype();
  llvm::Value* value = at_.values[made.factor->value].v;
  if (dtype == v1::F32) return b_.CreateBitCast(value, b_.getInt32Ty());
  // It has no more digits than that.
  llvm::Value* half = b_.CreateFPTrunc(value, dtype == v1::F16 ? b_.getHalfTy() : b_.getBFloatTy());
  return b_.CreateZExt(b_.CreateBitCast(half, b_.getInt16Ty()), b_.getInt32Ty());
}

std::array<llvm::Value*, 4> ThreadGemm::Words(const Made& made, llvm::Value* number, llvm::Value* term,
                                              bool aligned) {
  const auto terms = static_cast<unsigned>(shape_.gemm.terms());
  SetTerm(made, number, term);
  llvm::SmallVector<llvm::Value*, 4> lines;
  for (const uint32_t load : made.lines) {
    const v1::LoopOp& op = k_.facts.op(load);
    auto* type = llvm::FixedVectorType::get(k_.ScalarType(op.dtype()), terms);
    const uint64_t align = aligned ? LineAlign(load) : static_cast<uint64_t>(ir::ByteWidth(op.dtype()));
    lines.push_back(
        memory_.Annotate(b_.CreateAlignedLoad(type, memory_.Address(op), llvm::Align(align)), op.buffer()));
  }
  std::array<llvm::Value*, 4> words;
  const unsigned in_word = terms / static_cast<unsigned>(words.size());
  for (unsigned w = 0; w < words.size(); ++w) {
    const auto bits = [&](unsigned k) {
      SetTerm(made, number, b_.CreateAdd(term, b_.getInt32(w * in_word + k)));
      return Bits(made, lines, w * in_word + k);
    };
    words[w] = bits(0);
    if (in_word == 2) words[w] = b_.CreateOr(words[w], b_.CreateShl(bits(1), 16));
  }
  return words;
}

SkinnyFactors ThreadGemm::Factors() {
  SkinnyFactors factors;
  llvm::Value* bits = b_.I64(0);
  const auto see = [&](llvm::Value* address, uint64_t align) {
    llvm::Value* place = b_.CreatePtrToInt(address, b_.getInt64Ty());
    bits = b_.CreateOr(bits, b_.CreateAnd(place, b_.getInt64(align - 1)));
  };
  const auto find = [&](const GemmFactor& factor, const std::vector<uint32_t>& loops, llvm::Value** address,
                        SkinnyWords* make) {
    if (factor.ops.empty()) {
      *address = FirstElement(factor.load);
      return see(*address, kAccessBytes);
    }
    Made made = MadeOf(factor, loops);
    for (const uint32_t load : made.lines) see(FirstElement(load), LineAlign(load));
    *make = [this, made = std::move(made)](llvm::Value* number, llvm::Value* term, bool aligned) {
      return Words(made, number, term, aligned);
    };
  };
  find(loops_.a, loops_.rows, &factors.a, &factors.make_a);
  find(loops_.b, loops_.columns, &factors.b, &factors.make_b);
  factors.aligned = b_.CreateICmpEQ(bits, b_.I64(0), "aligned");
  return factors;
}

void ThreadGemm::SetLoops(const std::vector<uint32_t>& loops, llvm::Value* number) {
  for (size_t k = loops.size(); k-- > 0;) {
    llvm::Value* extent = b_.getInt32(
        static_cast<uint32_t>(*k_.facts.ConstantExpr(k_.kernel.outer(static_cast<int>(loops[k])))));
    at_.variables[loops[k]] = b_.CreateZExt(k == 0 ? number : b_.CreateURem(number, extent), b_.getInt64Ty());
    if (k > 0) number = b_.CreateUDiv(number, extent);
  }
}

void ThreadGemm::SetPoint(const SkinnyElement& element) {
  at_.variables.assign(k_.kernel.outer_size(), nullptr);
  SetLoops(loops_.rows, element.row);
  SetLoops(loops_.columns, element.column);
}

void ThreadGemm::ForOps(absl::FunctionRef<void(uint32_t id, const v1::LoopOp& op)> visit) {
  for (const StageInfo& info : k_.stages) {
    if (k_.NumberOf(info) == static_cast<int>(loops_.stage)) continue;
    at_.stage = &info;
    for (int k = 0; k < info.stage->ops_size(); ++k)
      visit(info.first_op + static_cast<uint32_t>(k), info.stage->ops(k));
  }
}

void ThreadGemm::LoadFirst(const SkinnyElement& element) {
  SetPoint(element);
  loaded_.emplace_back();
  ForOps([&](uint32_t id, const v1::LoopOp& op) {
    if (!MayLoadFirst(k_.facts, op)) return;
    stages_.Op(id, op);
    loaded_.back()[id] = at_.values[id];
  });
}

void ThreadGemm::Finish(const SkinnyElement& element, llvm::Value* sum) {
  SetPoint(element);
  at_.values[loops_.sum] = {sum, false};
  const auto& loaded = loaded_[element.iteration];
  ForOps([&](uint32_t id, const v1::LoopOp& op) {
    if (const auto found = loaded.find(id); found != loaded.end()) {
      at_.values[id] = found->second;
    } else {
      stages_.Op(id, op);
    }
  });
}

void ThreadGemm::Emit() {
  EmitSkinnySums(
      shape_, Factors(), k_.module, &b_, [&](const SkinnyElement& element) { LoadFirst(element); },
      [&](const SkinnyElement& element, llvm::Value* value) { Finish(element, value); });
}

}  // namespace kiln
