#include "compiler/codegen/index_emitter.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

bool IsPointwiseOp(v1::ExprOp op) {
  return op != v1::EXPR_CONST && op != v1::EXPR_SYMBOL && op != v1::EXPR_VAR && op != v1::EXPR_INDIRECT;
}

}  // namespace

void IndexEmitter::EmitExtents() {
  for (uint32_t extent : k_.kernel.outer()) k_.outer_extents.push_back(Scalar(extent));
  for (StageInfo& info : k_.stages) {
    for (uint32_t extent : info.stage->inner()) info.extents.push_back(Scalar(extent));
  }
}

std::optional<int64_t> IndexEmitter::Coefficient(uint32_t expr) const {
  return k_.facts.CoefficientOf(expr, at_.vector_variable,
                                [this](uint32_t op) { return at_.values[op].vector; });
}

bool IndexEmitter::NonNegative(uint32_t expr) const {
  const v1::ExprNode& node = k_.kernel.exprs(expr);
  const auto all = [&] {
    return std::all_of(node.args().begin(), node.args().end(),
                       [&](uint32_t arg) { return NonNegative(arg); });
  };
  switch (node.op()) {
    case v1::EXPR_CONST: return node.value() >= 0;
    case v1::EXPR_VAR:
    case v1::EXPR_INDIRECT:  // a check precedes it
      return true;
    case v1::EXPR_ADD:
    case v1::EXPR_MUL:
    case v1::EXPR_MIN:
    case v1::EXPR_FLOORDIV: return all();
    case v1::EXPR_MAX:
      return std::any_of(node.args().begin(), node.args().end(),
                         [&](uint32_t arg) { return NonNegative(arg); });
    case v1::EXPR_MOD: return NonNegative(node.args(1));
    case v1::EXPR_WHERE: return NonNegative(node.args(1)) && NonNegative(node.args(2));
    case v1::EXPR_EQ:
    case v1::EXPR_NE:
    case v1::EXPR_LT:
    case v1::EXPR_LE:
    case v1::EXPR_AND:
    case v1::EXPR_OR:
    case v1::EXPR_NOT: return true;
    default: return false;
  }
}

// How deep the innermost loop is that an expression depends on.
int IndexEmitter::Depth(uint32_t expr) const {
  const v1::ExprNode& node = k_.kernel.exprs(expr);
  if (node.op() == v1::EXPR_VAR) return static_cast<int>(node.value()) + 1;
  if (node.op() == v1::EXPR_INDIRECT) return static_cast<int>(at_.variables.size()) + 1;
  int depth = 0;
  for (uint32_t arg : node.args()) depth = std::max(depth, Depth(arg));
  return depth;
}

llvm::Value* IndexEmitter::Scalar(uint32_t expr) {
  const v1::ExprNode& node = k_.kernel.exprs(expr);
  switch (node.op()) {
    case v1::EXPR_CONST: return b_.I64(node.value());
    case v1::EXPR_SYMBOL: return k_.symbols[node.value()];
    case v1::EXPR_VAR: return at_.variables[node.value()];
    case v1::EXPR_INDIRECT: {
      const LaneValue value = at_.values[node.value()];
      return value.vector ? b_.CreateExtractElement(value.v, uint64_t{0}) : value.v;
    }
    default: break;
  }
  // Sums from the outermost loop inwards, so that each partial sum can be hoisted.
  std::vector<uint32_t> order(node.args().begin(), node.args().end());
  if (node.op() == v1::EXPR_ADD || node.op() == v1::EXPR_MUL) {
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return Depth(a) < Depth(b); });
  }
  llvm::SmallVector<llvm::Value*, 4> args;
  for (uint32_t arg : order) args.push_back(Scalar(arg));
  return ScalarExpr(node, args);
}

llvm::Value* IndexEmitter::Vector(uint32_t expr) {
  if (at_.lanes == 1) return Scalar(expr);
  if (const std::optional<int64_t> coefficient = Coefficient(expr)) {
    llvm::Value* base = at_.Splat(Scalar(expr));
    if (*coefficient == 0) return base;
    return b_.CreateAdd(base,
                        b_.CreateMul(at_.LaneNumbers(b_.getInt64Ty()), at_.Splat(b_.I64(*coefficient))));
  }
  const v1::ExprNode& node = k_.kernel.exprs(expr);
  if (!IsPointwiseOp(node.op())) return at_.Broadcast(at_.values[node.value()]);
  llvm::SmallVector<llvm::Value*, 4> args;
  for (uint32_t arg : node.args()) args.push_back(Vector(arg));
  return VectorExpr(node, args);
}

LaneValue IndexEmitter::ValueOf(uint32_t expr) {
  // A mask may hide the value of an element beyond the end, which may wrap and must not be poison.
  wraps_ = true;
  const bool scalar = at_.lanes == 1 || Coefficient(expr) == 0;
  const LaneValue value = {scalar ? Scalar(expr) : Vector(expr), !scalar};
  wraps_ = false;
  return value;
}

llvm::Value* IndexEmitter::FloorDivide(llvm::Value* a, llvm::Value* b, bool both_non_negative) {
  if (both_non_negative) return b_.CreateUDiv(a, b);
  llvm::Value* quotient = b_.CreateSDiv(a, b);
  llvm::Value* rest = b_.CreateSub(a, b_.CreateMul(quotient, b));
  llvm::Value* zero = llvm::ConstantInt::get(a->getType(), 0);
  llvm::Value* differs = b_.CreateICmpSLT(b_.CreateXor(rest, b), zero);
  llvm::Value* below = b_.CreateAnd(differs, b_.CreateICmpNE(rest, zero));
  return b_.CreateAdd(quotient, b_.CreateSExt(below, a->getType()));
}

llvm::Value* IndexEmitter::FloorModulo(llvm::Value* a, llvm::Value* b, bool both_non_negative) {
  if (both_non_negative) return b_.CreateURem(a, b);
  return b_.CreateSub(a, b_.CreateMul(FloorDivide(a, b, false), b));
}

llvm::Value* IndexEmitter::Power(const v1::ExprNode& node, llvm::Value* base) {
  const std::optional<int64_t> exponent = k_.facts.ConstantExpr(node.args(1));
  if (!exponent || *exponent < 0 || *exponent > 64) {
    k_.Fail(
        absl::UnimplementedError("unsupported: index expression with a power that is not a small constant"));
    return base;
  }
  llvm::Value* result = llvm::ConstantInt::get(base->getType(), 1);
  for (int64_t k = 0; k < *exponent; ++k) result = b_.CreateMul(result, base);
  return result;
}

llvm::Value* IndexEmitter::ScalarExpr(const v1::ExprNode& node, llvm::ArrayRef<llvm::Value*> args) {
  const auto fold = [&](auto combine) {
    llvm::Value* result = args[0];
    for (llvm::Value* arg : args.drop_front()) result = combine(result, arg);
    return result;
  };
  const auto truth = [&](llvm::Value* v) {
    return b_.CreateICmpNE(v, llvm::ConstantInt::get(v->getType(), 0));
  };
  const auto number = [&](llvm::Value* condition) { return b_.CreateZExt(condition, args[0]->getType()); };
  const bool non_negative =
      std::all_of(node.args().begin(), node.args().end(), [&](uint32_t arg) { return NonNegative(arg); });
  switch (node.op()) {
    case v1::EXPR_ADD:
      return fold(
          [&](llvm::Value* x, llvm::Value* y) { return b_.CreateAdd(x, y, "", /*HasNUW=*/false, !wraps_); });
    case v1::EXPR_MUL:
      return fold(
          [&](llvm::Value* x, llvm::Value* y) { return b_.CreateMul(x, y, "", /*HasNUW=*/false, !wraps_); });
    case v1::EXPR_FLOORDIV: return FloorDivide(args[0], args[1], non_negative);
    case v1::EXPR_MOD: return FloorModulo(args[0], args[1], non_negative);
    case v1::EXPR_CEILDIV: return b_.CreateNeg(FloorDivide(b_.CreateNeg(args[0]), args[1], false));
    case v1::EXPR_MIN:
      return fold(
          [&](llvm::Value* x, llvm::Value* y) { return b_.CreateSelect(b_.CreateICmpSLT(x, y), x, y); });
    case v1::EXPR_MAX:
      return fold(
          [&](llvm::Value* x, llvm::Value* y) { return b_.CreateSelect(b_.CreateICmpSGT(x, y), x, y); });
    case v1::EXPR_POW: return Power(node, args[0]);
    case v1::EXPR_WHERE: return b_.CreateSelect(truth(args[0]), args[1], args[2]);
    case v1::EXPR_EQ: return number(b_.CreateICmpEQ(args[0], args[1]));
    case v1::EXPR_NE: return number(b_.CreateICmpNE(args[0], args[1]));
    case v1::EXPR_LT: return number(b_.CreateICmpSLT(args[0], args[1]));
    case v1::EXPR_LE: return number(b_.CreateICmpSLE(args[0], args[1]));
    case v1::EXPR_AND:
      return number(fold([&](llvm::Value* x, llvm::Value* y) {
        if (!x->getType()->getScalarType()->isIntegerTy(1)) x = truth(x);
        return b_.CreateAnd(x, truth(y));
      }));
    case v1::EXPR_OR:
      return number(fold([&](llvm::Value* x, llvm::Value* y) {
        if (!x->getType()->getScalarType()->isIntegerTy(1)) x = truth(x);
        return b_.CreateOr(x, truth(y));
      }));
    case v1::EXPR_NOT: return number(b_.CreateNot(truth(args[0])));
    default:
      k_.Fail(absl::InternalError(absl::StrCat("index expression of kind ", v1::ExprOp_Name(node.op()))));
      return b_.I64(0);
  }
}

// Per lane. x86 has no vector division of integers; element numbers stay below 2^46
// (support/compiler_limits.h), where the quotient of doubles rounds down to the right integer.
llvm::Value* IndexEmitter::VectorExpr(const v1::ExprNode& node, llvm::ArrayRef<llvm::Value*> args) {
  const bool divides =
      node.op() == v1::EXPR_FLOORDIV || node.op() == v1::EXPR_MOD || node.op() == v1::EXPR_CEILDIV;
  if (!divides) return ScalarExpr(node, args);
  llvm::Type* f64 = at_.Wide(b_.getDoubleTy());
  const bool ceil = node.op() == v1::EXPR_CEILDIV;
  llvm::Value* dividend = ceil ? b_.CreateNeg(args[0]) : args[0];
  llvm::Value* exact = b_.CreateFDiv(b_.CreateSIToFP(dividend, f64), b_.CreateSIToFP(args[1], f64));
  llvm::Value* floor = b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, exact);
  llvm::Value* quotient = b_.CreateFPToSI(floor, at_.Wide(b_.getInt64Ty()));
  if (ceil) return b_.CreateNeg(quotient);
  if (node.op() == v1::EXPR_FLOORDIV) return quotient;
  return b_.CreateSub(args[0], b_.CreateMul(quotient, args[1]));
}

}  // namespace kiln
