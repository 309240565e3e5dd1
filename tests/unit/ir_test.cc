#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "compiler/graph/expr.h"
#include "compiler/ir/half.h"
#include "compiler/ir/interpreter.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/ir/print.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/ir/verify_kernel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Runs all units, or the given ones.
struct Machine {
  std::vector<void*> buffers;
  std::vector<int64_t> symbols;
  KilnStatus status{};

  absl::StatusOr<int32_t> Run(const v1::Kernel& kernel, int64_t begin = 0, int64_t end = -1) {
    auto interpreter = KernelInterpreter::Create(kernel);
    if (!interpreter.ok()) return interpreter.status();
    KilnArgs args{sizeof(KilnArgs), static_cast<uint32_t>(buffers.size()), buffers.data(), symbols.data(),
                  &status};
    if (end < 0) end = (*interpreter)->Units(symbols.data()).value();
    return (*interpreter)->Run(args, begin, end, 0);
  }
};

// y[i] = exp(x[i]) over s0 elements.
v1::Kernel ExpKernel(uint32_t chunk = 1) {
  KernelBuilder b;
  uint32_t n = b.Symbol(0);
  uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(y, b.Var(0), b.Op(LoopOpcode::kExp, v1::F32, {b.Load(x, b.Var(0))}));
  b.Schedule(1, chunk, v1::VECTOR_OUTER_LAST);
  return b.Build();
}

// Rows of softmax: max, sum of exponentials, quotient.
v1::Kernel SoftmaxKernel(int64_t columns) {
  KernelBuilder b;
  uint32_t rows = b.Symbol(0), cols = b.Const(columns), span = b.Mul(rows, cols);
  uint32_t x = b.Buffer(v1::F32, v1::READ, span), y = b.Buffer(v1::F32, v1::WRITE, span);
  b.Outer(rows);
  uint32_t at = b.Add(b.Mul(b.Var(0), cols), b.Var(1));
  b.BeginStage({cols});
  uint32_t max = b.Reduce(v1::REDUCE_MAX, b.Load(x, at));
  b.BeginStage({cols});
  uint32_t shifted = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(x, at), max});
  uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Op(LoopOpcode::kExp, v1::F32, {shifted}));
  b.BeginStage({cols});
  uint32_t exp = b.Op(LoopOpcode::kExp, v1::F32, {b.Op(LoopOpcode::kSub, v1::F32, {b.Load(x, at), max})});
  b.Store(y, at, b.Op(LoopOpcode::kDiv, v1::F32, {exp, sum}));
  b.Schedule(1, 2, v1::VECTOR_INNER_LAST);
  return b.Build();
}

TEST(Interpreter, PointwiseByUnits) {
  std::vector<float> x = {0, 1, -1, 2, 3}, y(5, 99);
  Machine machine{{x.data(), y.data()}, {5}};
  EXPECT_EQ(machine.Run(ExpKernel(2), 1, 2).value(), KILN_OK);
  EXPECT_EQ(y[0], 99);
  EXPECT_EQ(y[2], std::exp(-1.0f));
  EXPECT_EQ(y[4], 99);
  EXPECT_EQ(machine.Run(ExpKernel(2)).value(), KILN_OK);
  EXPECT_EQ(y[4], std::exp(3.0f));
}

TEST(Interpreter, StagesShareReductions) {
  std::vector<float> x = {1, 2, 3, 4, 4, 4, -1, 0, 1}, y(9);
  Machine machine{{x.data(), y.data()}, {3}};
  ASSERT_EQ(machine.Run(SoftmaxKernel(3)).value(), KILN_OK);
  for (int row = 0; row < 3; ++row) {
    float total = y[3 * row] + y[3 * row + 1] + y[3 * row + 2];
    EXPECT_NEAR(total, 1, 1e-6);
  }
  EXPECT_NEAR(y[3], 1.0f / 3, 1e-7);
  EXPECT_NEAR(y[2] / y[1], std::exp(1.0f), 1e-5);
}

TEST(Interpreter, ZeroSizes) {
  std::vector<float> none;
  Machine machine{{none.data(), none.data()}, {0}};
  EXPECT_EQ(machine.Run(ExpKernel()).value(), KILN_OK);
}

// One reduction of a row of `values` into out[0].
template <typename T>
T ReduceRow(v1::DType dtype, v1::ReduceKind kind, std::vector<T> values) {
  KernelBuilder b;
  uint32_t n = b.Symbol(0);
  bool arg = kind == v1::REDUCE_ARGMAX || kind == v1::REDUCE_ARGMIN;
  uint32_t x = b.Buffer(dtype, v1::READ, n), y = b.Buffer(arg ? v1::I64 : dtype, v1::WRITE, b.Const(1));
  b.BeginStage({n});
  uint32_t result = b.Reduce(kind, b.Load(x, b.Var(0)));
  b.BeginStage({});
  b.Store(y, b.Const(0), result);
  int64_t position = -1;
  T out{};
  Machine machine{{values.data(), arg ? static_cast<void*>(&position) : &out},
                  {static_cast<int64_t>(values.size())}};
  EXPECT_EQ(machine.Run(b.Build()).value(), KILN_OK);
  return arg ? static_cast<T>(position) : out;
}

TEST(Interpreter, Reductions) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_SUM, {1, 2, 3.5f}), 6.5f);
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_SUM, {}), 0);
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_PROD, {}), 1);
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_MAX, {}), -kInf);
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_MAX, {1, 3, 2}), 3);
  EXPECT_TRUE(std::isnan(ReduceRow<float>(v1::F32, v1::REDUCE_MAX, {1, kNan, 2})));
  EXPECT_TRUE(std::isnan(ReduceRow<float>(v1::F32, v1::REDUCE_MIN, {kNan, 1})));
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_ARGMAX, {1, 3, 3}), 1) << "first of ties";
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_ARGMAX, {1, kNan, 3, kNan}), 1) << "first NaN";
  EXPECT_EQ(ReduceRow<float>(v1::F32, v1::REDUCE_ARGMIN, {1, 0, 0}), 1);
  EXPECT_EQ(ReduceRow<int32_t>(v1::I32, v1::REDUCE_SUM, {INT32_MAX, 1}), INT32_MIN) << "integers wrap";
  EXPECT_EQ(ReduceRow<int8_t>(v1::I8, v1::REDUCE_MIN, {}), 127);
  EXPECT_EQ(ReduceRow<uint8_t>(v1::BOOL, v1::REDUCE_ANY, {0, 0}), 0);
  EXPECT_EQ(ReduceRow<uint8_t>(v1::BOOL, v1::REDUCE_ANY, {0, 1}), 1);
  EXPECT_EQ(ReduceRow<uint8_t>(v1::BOOL, v1::REDUCE_ALL, {}), 1);
  EXPECT_EQ(ReduceRow<uint8_t>(v1::BOOL, v1::REDUCE_ALL, {1, 0}), 0);
}

TEST(Interpreter, ScanRestartsInEveryRow) {
  KernelBuilder b;
  uint32_t two = b.Const(2), three = b.Const(3), span = b.Const(6);
  uint32_t x = b.Buffer(v1::F32, v1::READ, span), y = b.Buffer(v1::F32, v1::WRITE, span);
  b.BeginStage({two, three});
  uint32_t at = b.Add(b.Mul(b.Var(0), three), b.Var(1));
  b.Store(y, at, b.Scan(v1::REDUCE_SUM, b.Load(x, at)));
  std::vector<float> in = {1, 2, 3, 10, 20, 30}, out(6);
  Machine machine{{in.data(), out.data()}, {}};
  EXPECT_EQ(machine.Run(b.Build()).value(), KILN_OK);
  EXPECT_THAT(out, ElementsAre(1, 3, 6, 10, 30, 60));
}

// y[i] = x[check(index[i])]
v1::Kernel GatherKernel() {
  KernelBuilder b;
  uint32_t n = b.Const(3), size = b.Const(4);
  uint32_t index = b.Buffer(v1::I64, v1::READ, n), x = b.Buffer(v1::F32, v1::READ, size);
  uint32_t y = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  uint32_t checked = b.CheckIndex(b.Load(index, b.Var(0)), size);
  b.Store(y, b.Var(0), b.Load(x, b.Indirect(checked)));
  return b.Build();
}

TEST(Interpreter, IndirectLoadsAndFailures) {
  std::vector<int64_t> index = {3, -1, 0};
  std::vector<float> x = {10, 11, 12, 13}, y(3);
  Machine machine{{index.data(), x.data(), y.data()}, {}};
  EXPECT_EQ(machine.Run(GatherKernel()).value(), KILN_OK);
  EXPECT_THAT(y, ElementsAre(13, 13, 10));
  index[1] = 4;
  EXPECT_EQ(machine.Run(GatherKernel()).value(), KILN_INDEX_OUT_OF_RANGE);
  EXPECT_EQ(machine.status.code, KILN_INDEX_OUT_OF_RANGE);
  EXPECT_EQ(machine.status.value, 4);
  EXPECT_EQ(machine.status.bound, 4);
  EXPECT_EQ(machine.status.op, 1);
}

TEST(Interpreter, MasksAndAccumulation) {
  KernelBuilder b;
  uint32_t n = b.Const(4), two = b.Const(2);
  uint32_t x = b.Buffer(v1::BF16, v1::READ, two), y = b.Buffer(v1::BF16, v1::READ_WRITE, b.Const(1));
  b.BeginStage({n});
  uint32_t inside = b.Op(LoopOpcode::kLt, v1::BOOL, {b.Index(b.Var(0)), b.Int(v1::I64, 2)});
  b.Store(y, b.Const(0), b.Load(x, b.Var(0), inside), inside, v1::STORE_ACCUMULATE);
  std::vector<uint16_t> in = {ToBF16(1), ToBF16(2)}, out = {ToBF16(0.5)};
  Machine machine{{in.data(), out.data()}, {}};
  EXPECT_EQ(machine.Run(b.Build()).value(), KILN_OK) << "the masked loads do not leave the buffer";
  EXPECT_EQ(FromBF16(out[0]), 3.5f);
}

TEST(Interpreter, LeavingABufferIsInternal) {
  KernelBuilder b;
  uint32_t x = b.Buffer(v1::F32, v1::READ, b.Const(2)), y = b.Buffer(v1::F32, v1::WRITE, b.Const(3));
  b.Outer(b.Const(3));
  b.BeginStage({});
  b.Store(y, b.Var(0), b.Load(x, b.Var(0)));
  std::vector<float> in(2), out(3);
  Machine machine{{in.data(), out.data()}, {}};
  absl::StatusOr<int32_t> result = machine.Run(b.Build());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(result.status().message(), HasSubstr("element 2 of buffer 0"));
}

Scalar I(int64_t i) { return {.i = i}; }
int64_t Int(LoopOpcode op, v1::DType dtype, int64_t a, int64_t b) {
  Scalar args[3] = {I(a), I(b), I(0)}, result = I(0);
  EXPECT_TRUE(ApplyScalarOp(op, dtype, args, &result));
  return result.i;
}
double Double(LoopOpcode op, double a, double b = 0) {
  Scalar args[3] = {{.d = a}, {.d = b}, {.d = 0}}, result;
  EXPECT_TRUE(ApplyScalarOp(op, v1::F64, args, &result));
  return result.d;
}

TEST(ScalarOps, Integers) {
  EXPECT_EQ(Int(LoopOpcode::kFloorDiv, v1::I32, -7, 2), -4);
  EXPECT_EQ(Int(LoopOpcode::kTruncDiv, v1::I32, -7, 2), -3);
  EXPECT_EQ(Int(LoopOpcode::kRemainder, v1::I32, -7, 2), 1);
  EXPECT_EQ(Int(LoopOpcode::kRemainder, v1::I32, 7, -2), -1);
  EXPECT_EQ(Int(LoopOpcode::kFmod, v1::I32, -7, 2), -1);
  EXPECT_EQ(Int(LoopOpcode::kFloorDiv, v1::I64, INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(Int(LoopOpcode::kRemainder, v1::I64, INT64_MIN, -1), 0);
  EXPECT_EQ(Int(LoopOpcode::kAdd, v1::U8, 250, 10), 4);
  EXPECT_EQ(Int(LoopOpcode::kNeg, v1::I8, -128, 0), -128);
  EXPECT_EQ(Int(LoopOpcode::kShiftLeft, v1::I32, 1, 31), INT32_MIN);
  EXPECT_EQ(Int(LoopOpcode::kShiftLeft, v1::I32, 1, 32), 0);
  EXPECT_EQ(Int(LoopOpcode::kShiftRight, v1::I32, -8, 99), -1);
  EXPECT_EQ(Int(LoopOpcode::kPow, v1::I32, 3, 4), 81);
  EXPECT_EQ(Int(LoopOpcode::kPow, v1::I32, 2, -1), 0);
  EXPECT_EQ(Int(LoopOpcode::kPow, v1::I32, -1, -3), -1);
  EXPECT_EQ(Int(LoopOpcode::kBitNot, v1::BOOL, 1, 0), 0);
  EXPECT_EQ(Int(LoopOpcode::kAdd, v1::BOOL, 1, 1), 1);
  Scalar args[2] = {I(1), I(0)}, result;
  EXPECT_FALSE(ApplyScalarOp(LoopOpcode::kRemainder, v1::I64, args, &result));
}

TEST(ScalarOps, Floats) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isnan(Double(LoopOpcode::kMaximum, kNan, 1)));
  EXPECT_TRUE(std::isnan(Double(LoopOpcode::kMaximum, 1, kNan)));
  EXPECT_EQ(Double(LoopOpcode::kSign, kNan), 0);
  EXPECT_FALSE(std::signbit(Double(LoopOpcode::kSign, -0.0)));
  EXPECT_EQ(Double(LoopOpcode::kFloorDiv, -7, 2), -4);
  EXPECT_EQ(Double(LoopOpcode::kFloorDiv, 1, 0), kInf);
  EXPECT_EQ(Double(LoopOpcode::kRemainder, -7, 2), 1);
  EXPECT_EQ(Double(LoopOpcode::kFmod, -7, 2), -1);
  EXPECT_EQ(Double(LoopOpcode::kRound, 2.5), 2);
  EXPECT_EQ(Double(LoopOpcode::kRound, -1.5), -2);
}

TEST(ScalarOps, Casts) {
  auto to = [](v1::DType dtype, double value) { return CastScalar(v1::F64, dtype, {.d = value}).i; };
  EXPECT_EQ(to(v1::I32, -1.9), -1);
  EXPECT_EQ(to(v1::I64, 1e30), INT64_MIN);
  EXPECT_EQ(to(v1::I32, 1e30), 0) << "INT64_MIN cut to 32 bits";
  EXPECT_EQ(to(v1::I32, 4294967297.0), 1);
  EXPECT_EQ(to(v1::U8, -1), 255);
  EXPECT_EQ(to(v1::I64, std::nan("")), INT64_MIN);
  EXPECT_EQ(to(v1::BOOL, std::nan("")), 1);
  EXPECT_EQ(to(v1::BOOL, 0.25), 1);
  EXPECT_EQ(CastScalar(v1::I64, v1::F32, I((int64_t{1} << 53) + 1)).f, 9007199254740992.0f);
  EXPECT_EQ(BitcastScalar(v1::F32, v1::I32, {.f = 1.0f}).i, 0x3F800000);
}

TEST(Half, EveryF16ComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    float value = FromF16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FromF16(ToF16(value))));
    } else {
      ASSERT_EQ(ToF16(value), bits) << value;
    }
    float brain = FromBF16(static_cast<uint16_t>(bits));
    if (!std::isnan(brain)) {
      ASSERT_EQ(ToBF16(brain), bits);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(FromF16(ToF16(65519)), 65504);
  EXPECT_TRUE(std::isinf(FromF16(ToF16(65520))));
  EXPECT_EQ(FromF16(ToF16(2049)), 2048);
  EXPECT_EQ(FromF16(ToF16(2051)), 2052);
  EXPECT_EQ(ToF16(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(ToF16(std::ldexp(1.5f, -25)), 1);
  EXPECT_EQ(ToF16(std::ldexp(1023.75f, -24)), 0x400);
  EXPECT_EQ(FromBF16(ToBF16(257)), 256);
  EXPECT_EQ(FromBF16(ToBF16(259)), 260);
}

TEST(Random, KnownAnswers) {  // Random123's for philox4x32-10
  EXPECT_EQ(RandomBits(0, 0, 0), 0x6627e8d5);
  EXPECT_EQ(RandomBits(0, 1, 0), 0xe169c58d);
  EXPECT_EQ(RandomBits(0, 2, 0), 0xbc57ac4c);
  EXPECT_EQ(RandomBits(0, 3, 0), 0x9b00dbd8);
  EXPECT_NE(RandomBits(0, 4, 0), RandomBits(0, 0, 0));
}

void ExpectRefused(const v1::Kernel& kernel, const char* why) {
  absl::Status status = VerifyKernel(kernel);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why;
  EXPECT_THAT(status.message(), HasSubstr(why));
}

TEST(VerifyKernel, AcceptsWhatIsRight) {
  EXPECT_EQ(VerifyKernel(ExpKernel()), absl::OkStatus());
  EXPECT_EQ(VerifyKernel(SoftmaxKernel(3)), absl::OkStatus());
  EXPECT_EQ(VerifyKernel(GatherKernel()), absl::OkStatus());
}

TEST(VerifyKernel, RefusesWhatIsWrong) {
  struct Case {
    const char* why;
    void (*change)(v1::Kernel*);
  };
  const Case kCases[] = {
      {"format version", [](v1::Kernel* k) { k->set_format_version(9); }},
      {"no stage", [](v1::Kernel* k) { k->clear_stages(); }},
      {"unknown operator", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(0)->set_op(0); }},
      {"arguments where", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(1)->clear_args(); }},
      {"not before it", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(1)->set_args(0, 1); }},
      {"takes f32 or f64", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(1)->set_dtype(v1::I32); }},
      {"dtypes differ", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(1)->set_dtype(v1::F64); }},
      {"not the buffer's", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(0)->set_dtype(v1::F64); }},
      {"buffer does not exist", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(0)->set_buffer(7); }},
      {"only written", [](v1::Kernel* k) { k->mutable_buffers(0)->set_access(v1::WRITE); }},
      {"only read", [](v1::Kernel* k) { k->mutable_buffers(1)->set_access(v1::READ); }},
      {"only written",
       [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(2)->set_mode(v1::STORE_ACCUMULATE); }},
      {"unknown store mode", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(2)->set_mode(5); }},
      {"index does not exist", [](v1::Kernel* k) { k->mutable_stages(0)->mutable_ops(0)->set_index(99); }},
      {"symbol that does not", [](v1::Kernel* k) { k->set_symbol_count(0); }},
      {"not before it",
       [](v1::Kernel* k) {
         *k->add_exprs() = v1::ExprNode();
         k->mutable_exprs(k->exprs_size() - 1)->set_op(v1::EXPR_NOT);
         k->mutable_exprs(k->exprs_size() - 1)->add_args(k->exprs_size() - 1);
       }},
      {"loop that does not", [](v1::Kernel* k) { k->mutable_exprs(1)->set_value(1); }},
      {"depends on a loop", [](v1::Kernel* k) { k->set_outer(0, 1); }},
      {"depends on a loop", [](v1::Kernel* k) { k->mutable_buffers(0)->set_span(1); }},
      {"do not know", [](v1::Kernel* k) { k->mutable_buffers(0)->set_dtype(v1::C64); }},
      {"no access", [](v1::Kernel* k) { k->mutable_buffers(0)->clear_access(); }},
      {"parallel loops", [](v1::Kernel* k) { k->mutable_schedule()->set_parallel_dims(2); }},
      {"chunk of 0", [](v1::Kernel* k) { k->mutable_schedule()->set_chunk(0); }},
  };
  for (const Case& c : kCases) {
    v1::Kernel kernel = ExpKernel();
    c.change(&kernel);
    ExpectRefused(kernel, c.why);
  }
}

TEST(VerifyKernel, NoBooleansAreAccumulated) {
  for (const v1::DType dtype : {v1::BOOL, v1::I8}) {
    KernelBuilder b;
    const uint32_t n = b.Const(4);
    const uint32_t x = b.Buffer(dtype, v1::READ, n), y = b.Buffer(dtype, v1::READ_WRITE, n);
    b.BeginStage({n});
    b.Store(y, b.Var(0), b.Load(x, b.Var(0)), std::nullopt, v1::STORE_ACCUMULATE);
    if (dtype == v1::BOOL) {
      ExpectRefused(b.Build(), "accumulates bool");
    } else {
      EXPECT_EQ(VerifyKernel(b.Build()), absl::OkStatus());
    }
  }
}

TEST(VerifyKernel, VisibilityBetweenStages) {
  KernelBuilder b;
  uint32_t n = b.Const(4);
  uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
  b.BeginStage({n});
  uint32_t load = b.Load(x, b.Var(0));
  uint32_t sum = b.Reduce(v1::REDUCE_SUM, load);
  KernelBuilder own = b, inside = b, good = b;
  own.Store(y, own.Const(0), sum);
  ExpectRefused(own.Build(), "of its own stage");
  inside.BeginStage({});
  inside.Store(y, inside.Const(0), load);
  ExpectRefused(inside.Build(), "inside the loops");
  good.BeginStage({});
  good.Store(y, good.Const(0), sum);
  EXPECT_EQ(VerifyKernel(good.Build()), absl::OkStatus());
}

TEST(PrintKernel, ReadsWell) {
  v1::KernelNotes notes;
  notes.set_name("softmax");
  notes.add_operators("aten._softmax");
  notes.add_buffer_names("x");
  notes.add_buffer_names("y");
  EXPECT_EQ(PrintKernel(SoftmaxKernel(768), notes), R"(kernel softmax: vectors along the last inner loop
  # fused: aten._softmax
  x: f32[s0*768] read
  y: f32[s0*768] write
  for i0 in 0..s0 parallel by 2:
    stage 0:
      for i1 in 0..768:
        %0 = load x[i0*768 + i1] : f32
        %1 = reduce max %0 : f32
    stage 1:
      for i1 in 0..768:
        %2 = load x[i0*768 + i1] : f32
        %3 = sub %2, %1 : f32
        %4 = exp %3 : f32
        %5 = reduce sum %4 : f32
    stage 2:
      for i1 in 0..768:
        %6 = load x[i0*768 + i1] : f32
        %7 = sub %6, %1 : f32
        %8 = exp %7 : f32
        %9 = div %8, %5 : f32
        store y[i0*768 + i1] = %9 : f32
)");
}

TEST(PrintKernel, SurvivesNonsense) {
  v1::Kernel kernel = ExpKernel();
  kernel.mutable_stages(0)->mutable_ops(0)->set_op(77);
  kernel.mutable_stages(0)->mutable_ops(2)->set_index(77);
  kernel.mutable_stages(0)->mutable_ops(2)->clear_args();
  kernel.mutable_exprs(0)->set_op(v1::EXPR_ADD);
  kernel.set_outer(0, 1000);
  EXPECT_THAT(PrintKernel(kernel, {}), HasSubstr("?"));
}

}  // namespace
}  // namespace kiln
