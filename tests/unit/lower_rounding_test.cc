// Where F16 and BF16 are rounded: a value that a graph names has one bit pattern, as eager has it.
#include <random>

#include "compiler/lower/loop_recorder.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

// As eager rounds them: 1 + 2^-9 is not a BF16 number, and 1 as soon as it has a name.
TEST(Lower, HalfPrecisionRoundsEveryValueThatHasAName) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::BF16, {1});
  const auto with = [&](const char* target, ValueId value, double number) {
    return maker.Node(target, {{"self", T(value)}, {"other", FloatArg{number}}}, v1::BF16, {1});
  };
  const ValueId sum = with("aten.add.Tensor", x, 1.0 / 512);
  maker.Output(with("aten.mul.Tensor", with("aten.sub.Tensor", sum, 1), 512));
  EXPECT_EQ(Values<uint16_t>(Eval(Lower(maker), {Bytes<uint16_t>({0x3F80})}).outputs[0])[0], 0);
}

// Of the numbers, those that are added and subtracted, but not those that are multiplied with, and on a GPU
// none.
TEST(Lower, HalfPrecisionRoundsNumbersAsEagerDoes) {
  const auto result = [](const char* target, v1::DeviceType device) {
    GraphMaker maker;
    TensorType type = maker.Type(v1::BF16, maker.Sizes({1}));
    type.device = device;
    const ValueId x = maker.InputOf(type);
    // Between 1 and the next number, 1 + 2^-7, and nearer to 1.
    maker.Output(maker.NodeOf(target, {{"self", T(x)}, {"other", FloatArg{1 + 3.0 / 1024}}}, type));
    return Values<uint16_t>(Eval(Lower(maker), {Bytes<uint16_t>({0x3FFF})}).outputs[0])[0];  // 2 - 2^-7
  };
  EXPECT_EQ(result("aten.sub.Tensor", v1::CPU), 0x3F7E);   // 1 - 2^-7
  EXPECT_EQ(result("aten.sub.Tensor", v1::CUDA), 0x3F7D);  // less 3 2^-10, rounded: 1 - 3 2^-8
  EXPECT_EQ(result("aten.mul.Tensor", v1::CPU), 0x4000);   // rounded up to 2
}

// A chain of functions of x, half precision; what it gives is compared with its largest of a row. `cut`: that
// value of the chain is saved, and a backward takes what follows from there.
class ComparedChain {
 public:
  ComparedChain(v1::DType dtype, std::mt19937& random) : dtype_(dtype) {
    const size_t length = 2 + random() % 3;
    while (steps_.size() < length) steps_.push_back(random() % kSteps);
    cut_ = 1 + random() % (length - 1);
  }

  // Rows in which the backward finds the largest.
  int64_t RowsFound(const std::vector<float>& x, const LowerOptions& options) const {
    GraphMaker forward;
    ValueId value = forward.Input(v1::F32, kSizes), saved = 0;
    value = forward.Node("aten._to_copy.default", {{"self", T(value)}, {"dtype", DTypeArg{dtype_}}}, dtype_,
                         kSizes);
    for (size_t k = 0; k < steps_.size(); ++k) {
      value = Step(forward, steps_[k], value);
      if (k + 1 == cut_) saved = value;
    }
    forward.Output(Largest(forward, value));
    forward.Output(saved, /*visible=*/false);
    const LoopEvalResult first = Eval(*LowerGraph(forward.graph, options), {Bytes(x)});

    GraphMaker backward;
    const ValueId largest = backward.Input(dtype_, {kRows, 1});
    value = backward.Input(dtype_, kSizes);
    for (size_t k = cut_; k < steps_.size(); ++k) value = Step(backward, steps_[k], value);
    const ValueId equal =
        backward.Node("aten.eq.Tensor", {{"self", T(value)}, {"other", T(largest)}}, v1::BOOL, kSizes);
    backward.Output(
        backward.Node("aten.any.dim", {{"self", T(equal)}, {"dim", backward.Int(1)}}, v1::BOOL, {kRows}));
    const LoopEvalResult second = Eval(*LowerGraph(backward.graph, options), first.outputs);
    int64_t found = 0;
    for (const uint8_t row : Values<uint8_t>(second.outputs[0])) found += row;
    return found;
  }

  static constexpr int64_t kRows = 8, kColumns = 64;

 private:
  static constexpr uint32_t kSteps = 6;
  static inline const std::vector<int64_t> kSizes = {kRows, kColumns};

  ValueId Step(GraphMaker& maker, uint32_t step, ValueId of) const {
    const auto with = [&](const char* target, double number) {
      return maker.Node(target, {{"self", T(of)}, {"other", FloatArg{number}}}, dtype_, kSizes);
    };
    switch (step) {
      case 0: return maker.Node("aten.sigmoid.default", {{"self", T(of)}}, dtype_, kSizes);
      case 1: return maker.Node("aten.tanh.default", {{"self", T(of)}}, dtype_, kSizes);
      case 2: return maker.Node("aten.exp.default", {{"self", T(of)}}, dtype_, kSizes);
      case 3: return with("aten.mul.Tensor", 1.3);
      case 4: return with("aten.add.Tensor", 0.7);
      default: return with("aten.atan2.default", 1.7);
    }
  }

  ValueId Largest(GraphMaker& maker, ValueId of) const {
    return maker.Node("aten.amax.default",
                      {{"self", T(of)}, {"dim", maker.Ints({1})}, {"keepdim", BoolArg{true}}}, dtype_,
                      {kRows, 1});
  }

  v1::DType dtype_;
  std::vector<uint32_t> steps_;
  size_t cut_ = 1;  // steps before what is saved
};

TEST(Lower, WhatIsSavedRoundedAndComputedAgainIsEqualToItself) {
  std::mt19937 random(20261127);
  std::normal_distribution<float> normal;
  const LowerOptions rounded;
  LowerOptions unrounded;
  unrounded.round_values = false;
  int64_t rows = 0, without = 0;
  for (int program = 0; program < 40; ++program) {
    const ComparedChain chain(program % 2 == 0 ? v1::BF16 : v1::F16, random);
    std::vector<float> x(ComparedChain::kRows * ComparedChain::kColumns);
    for (float& v : x) v = normal(random);
    EXPECT_EQ(chain.RowsFound(x, rounded), ComparedChain::kRows) << program;
    rows += ComparedChain::kRows;
    without += chain.RowsFound(x, unrounded);
  }
  EXPECT_LT(without, rows - 10);  // the control: a value is then not equal to itself
}

TEST(LoopRecorder, ChoicesOfRoundedValuesAreNotRoundedAgain) {
  ExprPool exprs;
  LoopRecorder ops(exprs);
  const ExprId i = exprs.Var(0, exprs.Const(8));
  const LoopOpId x = ops.Load(0, v1::BF16, i), y = ops.Load(1, v1::BF16, i);
  const LoopOpId larger = ops.Binary(LoopOpcode::kMaximum, x, ops.Unary(LoopOpcode::kNeg, y));
  EXPECT_EQ(ops.RoundTo(x, v1::BF16), x);
  EXPECT_EQ(ops.RoundTo(larger, v1::BF16), larger);
  EXPECT_NE(ops.RoundTo(larger, v1::F16), larger);
  const LoopOpId sum = ops.Add(x, y), rounded = ops.RoundTo(sum, v1::BF16);
  EXPECT_NE(rounded, sum);
  EXPECT_EQ(ops.RoundTo(rounded, v1::BF16), rounded);
}

}  // namespace
}  // namespace kiln
