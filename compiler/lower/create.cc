// Tensors from numbers alone.
#include "compiler/lower/lowering_context.h"
#include "compiler/lower/operands.h"

namespace kiln {
namespace {

absl::Status Fill(LoweringContext& context, const GraphNode& node, const Argument& value) {
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return Operand(context, ops, value, index, type.sizes, type.dtype);
  }));
  return context.status();
}

absl::Status LowerFull(LoweringContext& context, const GraphNode& node) {
  for (const char* name : {"fill_value", "value", "s"}) {
    if (const Argument* value = node.Find(name)) return Fill(context, node, *value);
  }
  return absl::InvalidArgumentError("argument 'fill_value' is missing");
}

template <int64_t value>
absl::Status LowerConstant(LoweringContext& context, const GraphNode& node) {
  return Fill(context, node, IntArg{context.Const(value)});
}

// start + i * step; in integers as an index expression, so that it can index without a check.
absl::Status LowerArange(LoweringContext& context, const GraphNode& node) {
  static const Argument* zero = new Argument(BoolArg{false});
  static const Argument* one = new Argument(BoolArg{true});
  const Argument* start = node.Find("start");
  const Argument* step = node.Find("step");
  if (start == nullptr) start = zero;
  if (step == nullptr) step = one;
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() != 1) return absl::InvalidArgumentError("arange of another rank than 1");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    const v1::DType wide = IsFloat(type.dtype) ? ComputeType(type.dtype) : v1::I64;
    const LoopOpId i = ops.Cast(ops.IndexExpr(index[0]), wide);
    const LoopOpId first = Operand(context, ops, *start, index, type.sizes, wide);
    const LoopOpId stride = Operand(context, ops, *step, index, type.sizes, wide);
    return ops.Cast(ops.Add(first, ops.Mul(i, stride)), ComputeType(type.dtype));
  }));
  return context.status();
}

absl::Status LowerIota(LoweringContext& context, const GraphNode& node) { return LowerArange(context, node); }

absl::Status LowerEye(LoweringContext& context, const GraphNode& node) {
  const TensorType& type = context.ResultType(node);
  if (!context.status().ok()) return context.status();
  if (type.rank() != 2) return absl::InvalidArgumentError("eye of another rank than 2");
  context.SetResult(node, context.loops().Pointwise(type, [&](LoopRecorder& ops, Index index) {
    return ops.Cast(IndexEqual(ops, index[0], index[1]), ComputeType(type.dtype));
  }));
  return context.status();
}

}  // namespace

void RegisterCreation(LoweringTable& table) {
  for (const Op op :
       {Op::kFull, Op::kFullLike, Op::kNewFull, Op::kScalarTensor, Op::kFillScalar, Op::kFillTensor})
    table[op] = LowerFull;
  // What `empty` holds is anything; zeros are the same in every run.
  for (const Op op : {Op::kZeros, Op::kZerosLike, Op::kNewZeros, Op::kZero, Op::kEmptyLike, Op::kNewEmpty,
                      Op::kNewEmptyStrided, Op::kEmptyStrided, Op::kEmptyMemoryFormat, Op::kEmptyPermuted})
    table[op] = LowerConstant<0>;
  for (const Op op : {Op::kOnes, Op::kOnesLike, Op::kNewOnes}) table[op] = LowerConstant<1>;
  table[Op::kArange] = LowerArange;
  table[Op::kArangeStart] = LowerArange;
  table[Op::kArangeStartStep] = LowerArange;
  table[Op::kPrimsIota] = LowerIota;
  table[Op::kEye] = LowerEye;
  table[Op::kEyeM] = LowerEye;
}

}  // namespace kiln
