#include "compiler/codegen/skinny_gemm.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/math.h"
#include "compiler/codegen/math_builder.h"
#include "compiler/codegen/skinny_sums.h"
#include "compiler/support/status_macros.h"
#include "llvm/IR/Module.h"

namespace kiln {
namespace {

using llvm::Value;

constexpr unsigned kGlobal = 1;  // address space

// The function around the sums: its parameters, what is added, the activation, the store.
class SkinnyEntry {
 public:
  SkinnyEntry(const SkinnyShape& shape, llvm::Module* module)
      : shape_(shape), gemm_(shape.gemm), module_(*module), b_(module->getContext()) {}

  void Emit() {
    Begin();
    EmitSkinnySums(
        shape_, {.a = operands_.a, .b = operands_.b}, &module_, &b_,
        [&](const SkinnyElement& element) { LoadSummands(element); },
        [&](const SkinnyElement& element, Value* sum) { Finish(element, sum); });
    b_.CreateRetVoid();
  }

 private:
  struct Operands {
    Value *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr, *d = nullptr;
  };

  llvm::Type* Element() {
    if (gemm_.dtype == v1::F32) return b_.getFloatTy();
    return gemm_.dtype == v1::F16 ? b_.getHalfTy() : b_.getBFloatTy();
  }
  Value* Widen(Value* element) {
    return gemm_.dtype == v1::F32 ? element : b_.CreateFPExt(element, b_.getFloatTy());
  }
  Value* Narrow(Value* number) {
    return gemm_.dtype == v1::F32 ? number : b_.CreateFPTrunc(number, Element());
  }
  llvm::Align Align() const { return llvm::Align(static_cast<uint64_t>(gemm_.element_bytes())); }
  Value* Wide(Value* number) { return b_.CreateZExt(number, b_.getInt64Ty()); }
  // Of a matrix, by the strides of its rows and columns.
  Value* At(Value* base, const SkinnyGemm::Strides& strides, const SkinnyElement& element) {
    Value* place = b_.CreateAdd(b_.CreateMul(Wide(element.row), b_.I64(strides.row)),
                                b_.CreateMul(Wide(element.column), b_.I64(strides.column)));
    return b_.CreateGEP(Element(), base, place);
  }
  Value* Load(Value* address) { return Widen(b_.CreateAlignedLoad(Element(), address, Align())); }

  void Begin() {
    const unsigned pointers = 3 + (gemm_.has_c ? 1 : 0) + (gemm_.has_bias ? 1 : 0);
    llvm::SmallVector<llvm::Type*, 5> parameters(pointers, b_.getPtrTy(kGlobal));
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), parameters, false);
    auto* function = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kGpuEntryName, module_);
    function->setCallingConv(llvm::CallingConv::PTX_Kernel);
    function->addFnAttr("nvvm.maxntid", absl::StrCat(shape_.threads()));
    if (shape_.blocks > 1) function->addFnAttr("nvvm.cluster_dim", absl::StrCat(shape_.blocks));
    function->addFnAttr(llvm::Attribute::NoUnwind);
    b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));
    unsigned next = 0;
    operands_.a = function->getArg(next++);
    operands_.b = function->getArg(next++);
    if (gemm_.has_c) operands_.c = function->getArg(next++);
    if (gemm_.has_bias) operands_.bias = function->getArg(next++);
    operands_.d = function->getArg(next++);
  }

  void LoadSummands(const SkinnyElement& element) {
    bias_.push_back(gemm_.has_bias ? Load(At(operands_.bias, {.row = 0, .column = 1}, element)) : nullptr);
    c_.push_back(gemm_.has_c ? Load(At(operands_.c, gemm_.c, element)) : nullptr);
  }

  void Finish(const SkinnyElement& element, Value* sum) {
    for (Value* more : {c_[element.iteration], bias_[element.iteration]}) {
      if (more != nullptr) sum = b_.CreateFAdd(sum, more);
    }
    b_.CreateAlignedStore(Narrow(Activate(sum)), At(operands_.d, gemm_.d, element), Align());
  }

  Value* Activate(Value* x) {
    MathBuilder m(b_, b_.getFloatTy());
    switch (gemm_.activation) {
      case v1::ACTIVATION_RELU: return m.Sel(m.Lt(x, m.C(0)), m.C(0), x);  // keeps NaN
      case v1::ACTIVATION_GELU_TANH: {
        const double scale = 0.7978845608028654;  // sqrt(2 / pi)
        Value* inner = m.Mul(x, m.Fma(m.Mul(x, x), m.C(scale * 0.044715), m.C(scale)));
        Value* tanh = MathEmitter(&module_, &MathEmitter::kGpuFunctions).Emit(b_, LoopOpcode::kTanh, {inner});
        return m.Mul(m.Mul(x, 0.5), m.Add(m.C(1), tanh));
      }
      default: return x;
    }
  }

  const SkinnyShape& shape_;
  const SkinnyGemm& gemm_;
  llvm::Module& module_;
  LoopBuilder b_;
  Operands operands_;
  std::vector<Value*> bias_, c_;  // by iteration; nullptr: none
};

}  // namespace

absl::StatusOr<SkinnyLaunch> EmitSkinnyGemm(const v1::Gemm& gemm, const v1::SkinnySchedule& schedule,
                                            llvm::Module* module) {
  KILN_ASSIGN_OR_RETURN(const SkinnyShape shape, SkinnyShape::Of(gemm, schedule));
  SkinnyEntry(shape, module).Emit();
  SkinnyLaunch launch;
  launch.image.threads = shape.threads();
  launch.image.points_per_block = 1;
  launch.image.buffers = 3 + (shape.gemm.has_c ? 1 : 0) + (shape.gemm.has_bias ? 1 : 0);
  launch.image.stored = uint64_t{1} << (launch.image.buffers - 1);
  launch.units = shape.units();
  return launch;
}

}  // namespace kiln
