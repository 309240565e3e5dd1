#include "compiler/lower/operands.h"

#include "compiler/passes/types.h"

namespace kiln {

LoopOpId Operand(LoweringContext& context, LoopRecorder& ops, const Argument& argument, Index index,
                 const std::vector<ExprId>& sizes, v1::DType dtype) {
  const v1::DType compute = ComputeType(dtype);
  if (const auto* tensor = std::get_if<TensorArg>(&argument)) {
    if (!context.IsDefined(tensor->value)) return ops.Cast(ops.Fail("an undefined tensor is used"), compute);
    return ops.Cast(context.loops().LoadBroadcast(ops, context.value(tensor->value), index, sizes), compute);
  }
  if (const auto* value = std::get_if<FloatArg>(&argument)) return ops.Constant(value->value, compute);
  if (const auto* value = std::get_if<BoolArg>(&argument)) return ops.ConstantInt(value->value, compute);
  if (const auto* value = std::get_if<IntArg>(&argument))
    return ops.Cast(ops.IndexExpr(value->value), compute);
  return ops.Cast(ops.Fail("an operand is neither a tensor nor a number"), compute);
}

v1::DType PromotedType(const LoweringContext& context, absl::Span<const Argument* const> arguments) {
  using Rank = PromotionOperand::Rank;
  std::vector<PromotionOperand> operands;
  for (const Argument* argument : arguments) {
    if (argument == nullptr) continue;
    if (const auto* tensor = std::get_if<TensorArg>(argument)) {
      if (!context.IsDefined(tensor->value)) continue;
      const LoweredTensor& value = context.value(tensor->value);
      operands.push_back({value.dtype, value.rank() == 0 ? Rank::kZeroDim : Rank::kDimensioned});
    } else if (std::holds_alternative<FloatArg>(*argument)) {
      operands.push_back({v1::F32, Rank::kScalar});
    } else if (std::holds_alternative<IntArg>(*argument)) {
      operands.push_back({v1::I64, Rank::kScalar});
    } else if (std::holds_alternative<BoolArg>(*argument)) {
      operands.push_back({v1::BOOL, Rank::kScalar});
    }
  }
  return PromoteDTypes(operands);
}

}  // namespace kiln
