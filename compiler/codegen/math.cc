// Which function is computed how: float formulas, double formulas, inline or called.
#include "compiler/codegen/math.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/math_formulas.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

bool IsMath(LoopOpcode op) {
  switch (op) {
    case LoopOpcode::kFmod:
    case LoopOpcode::kRemainder:
    case LoopOpcode::kFloorDiv:
    case LoopOpcode::kPow: return true;
    default: return InfoOf(op).op_class == LoopOpClass::kFloat;
  }
}

std::string TypeName(llvm::Type* type) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  const std::string element = type->getScalarType()->isDoubleTy() ? "f64" : "f32";
  return vector == nullptr ? element : absl::StrCat("v", vector->getNumElements(), element);
}

}  // namespace

MathEmitter::V MathEmitter::Outlined(llvm::IRBuilder<>& b, llvm::StringRef name, llvm::ArrayRef<V> args,
                                     llvm::Type* result,
                                     absl::FunctionRef<V(llvm::IRBuilder<>&, llvm::ArrayRef<V>)> body) {
  const std::string full = ("kiln_" + name + "_" + TypeName(args[0]->getType())).str();
  llvm::Function* function = module_->getFunction(full);
  if (function == nullptr) {
    llvm::SmallVector<llvm::Type*, 2> types;
    for (V arg : args) types.push_back(arg->getType());
    function = llvm::Function::Create(llvm::FunctionType::get(result, types, false),
                                      llvm::GlobalValue::InternalLinkage, full, module_);
    function->addFnAttr(llvm::Attribute::NoInline);
    function->setMemoryEffects(llvm::MemoryEffects::none());
    llvm::IRBuilder<> inner(llvm::BasicBlock::Create(module_->getContext(), "entry", function));
    llvm::SmallVector<V, 2> parameters;
    for (llvm::Argument& parameter : function->args()) parameters.push_back(&parameter);
    V value = body(inner, parameters);
    inner.CreateRet(value);
  }
  return b.CreateCall(function, args);
}

MathEmitter::V MathEmitter::Emit(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<V> args) {
  if (!IsMath(op)) return nullptr;
  if (!args[0]->getType()->getScalarType()->isDoubleTy() && cost::PaysInlining(op)) return Body(b, op, args);
  const absl::string_view name = InfoOf(op).name;
  return Outlined(
      b, llvm::StringRef(name.data(), name.size()), args, args[0]->getType(),
      [&](llvm::IRBuilder<>& inner, llvm::ArrayRef<V> parameters) { return Body(inner, op, parameters); });
}

MathEmitter::V MathEmitter::Body(llvm::IRBuilder<>& b, LoopOpcode op, llvm::ArrayRef<V> args) {
  llvm::Type* type = args[0]->getType();
  MathBuilder m(b, type);
  if (m.is_double) return DoubleBody(m, op, args);
  if (V own = FloatBody(m, op, args[0])) return own;
  llvm::Type* wide_type = type->getWithNewType(b.getDoubleTy());
  MathBuilder wide(b, wide_type);
  llvm::SmallVector<V, 2> wide_args;
  for (V arg : args) wide_args.push_back(b.CreateFPExt(arg, wide_type));
  V result;
  if (op == LoopOpcode::kPow) {
    result = Pow(wide, wide_args[0], wide_args[1], false);
  } else if (op == LoopOpcode::kRemainder || op == LoopOpcode::kFloorDiv) {
    // The remainder of floats is a float; what follows it rounds as floats do.
    return op == LoopOpcode::kRemainder ? Remainder(m, args[0], args[1]) : FloorDivide(m, args[0], args[1]);
  } else {
    result = DoubleBody(wide, op, wide_args);
  }
  return b.CreateFPTrunc(result, type);
}

MathEmitter::V MathEmitter::FloatBody(MathBuilder& m, LoopOpcode op, V x) {
  switch (op) {
    case LoopOpcode::kExp: return Exp(m, x);
    case LoopOpcode::kExp2: return Exp2(m, x);
    case LoopOpcode::kExpm1: return formulas::Expm1(m, x);
    case LoopOpcode::kLog:
    case LoopOpcode::kLog2:
    case LoopOpcode::kLog10: return formulas::Log(m, x, op);
    case LoopOpcode::kLog1p: return formulas::Log1p(m, x);
    case LoopOpcode::kSin:
    case LoopOpcode::kCos:
    case LoopOpcode::kTan: return SinCos(m, x, op);
    case LoopOpcode::kTanh: return own_.tanh != nullptr ? own_.tanh(m, x) : formulas::Tanh(m, x);
    case LoopOpcode::kErf: return FloatErf(m, x);
    case LoopOpcode::kSigmoid: return Sigmoid(m, x);
    case LoopOpcode::kOnePlusErf: return OnePlusErf(m, x);
    case LoopOpcode::kOnePlusTanh: return OnePlusTanh(m, x);
    case LoopOpcode::kSoftmaxExp: return SoftmaxExp(m, x);
    default: return nullptr;
  }
}

MathEmitter::V MathEmitter::DoubleBody(MathBuilder& m, LoopOpcode op, llvm::ArrayRef<V> args) {
  V x = args[0];
  switch (op) {
    case LoopOpcode::kExp:
    case LoopOpcode::kSoftmaxExp: return Exp(m, x);
    case LoopOpcode::kOnePlusErf: return OnePlusErf(m, x);
    case LoopOpcode::kOnePlusTanh: return OnePlusTanh(m, x);
    case LoopOpcode::kExp2: return Exp2(m, x);
    case LoopOpcode::kExpm1: return formulas::Expm1(m, x);
    case LoopOpcode::kLog:
    case LoopOpcode::kLog2:
    case LoopOpcode::kLog10: return formulas::Log(m, x, op);
    case LoopOpcode::kLog1p: return formulas::Log1p(m, x);
    case LoopOpcode::kSin:
    case LoopOpcode::kCos:
    case LoopOpcode::kTan: return SinCos(m, x, op);
    case LoopOpcode::kAsin: return formulas::Asin(m, x);
    case LoopOpcode::kAcos: return formulas::Acos(m, x);
    case LoopOpcode::kAtan: return formulas::Atan(m, x);
    case LoopOpcode::kAtan2: return formulas::Atan2(m, x, args[1]);
    case LoopOpcode::kSinh: return Sinh(m, x);
    case LoopOpcode::kCosh: return Cosh(m, x);
    case LoopOpcode::kTanh: return formulas::Tanh(m, x);
    case LoopOpcode::kAsinh: return formulas::Asinh(m, x);
    case LoopOpcode::kAcosh: return formulas::Acosh(m, x);
    case LoopOpcode::kAtanh: return formulas::Atanh(m, x);
    case LoopOpcode::kErf: return Erf(m, x);
    case LoopOpcode::kErfc: return Erfc(m, x);
    case LoopOpcode::kSigmoid: return Sigmoid(m, x);
    case LoopOpcode::kPow: return Pow(m, x, args[1], true);
    case LoopOpcode::kLgamma: return Lgamma(m, x);
    case LoopOpcode::kFmod: return formulas::Fmod(m, x, args[1]);
    case LoopOpcode::kRemainder: return Remainder(m, x, args[1]);
    default: return FloorDivide(m, x, args[1]);
  }
}

}  // namespace kiln
