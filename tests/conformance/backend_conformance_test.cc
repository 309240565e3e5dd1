// One suite for every back-end: each loop operator, index and mask against the interpreter. Reductions are in
// backend_reductions_test.cc.
#include "tests/conformance/backend_conformance.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/kernel_builder.h"

namespace kiln {
namespace {

constexpr v1::DType kStorable[] = {v1::BOOL, v1::U8,  v1::I8,   v1::I16, v1::I32,
                                   v1::I64,  v1::F16, v1::BF16, v1::F32, v1::F64};

bool IsDivision(LoopOpcode op) {
  return op == LoopOpcode::kFloorDiv || op == LoopOpcode::kTruncDiv || op == LoopOpcode::kRemainder ||
         op == LoopOpcode::kFmod;
}

Tolerance OpTolerance(LoopOpcode op, v1::DType dtype) {
  if (!ir::IsFloating(dtype)) return {};
  const bool function = op >= LoopOpcode::kExp && op <= LoopOpcode::kPow;
  // The interpreter's C library is within 1 ulp; double lgamma is not promised near its zeros.
  if (op == LoopOpcode::kLgamma) return {5, 1e-13};
  if (op == LoopOpcode::kOnePlusErf || op == LoopOpcode::kOnePlusTanh) return {5, 0, 0x1p-21};
  if (op == LoopOpcode::kSoftmaxExp) return {6, 0};
  return {function ? 5.0 : 0.0, 0};
}

// Dtypes of the arguments for which an operator is defined.
std::vector<v1::DType> ArgumentDTypes(const LoopOpInfo& info) {
  std::vector<v1::DType> result;
  for (v1::DType dtype : kArithmetic) {
    bool defined = false;
    switch (info.op_class) {
      case LoopOpClass::kFloat: defined = ir::IsFloating(dtype); break;
      case LoopOpClass::kArith:
        defined = dtype != v1::BOOL || info.op == LoopOpcode::kAdd || info.op == LoopOpcode::kMul ||
                  info.op == LoopOpcode::kMaximum || info.op == LoopOpcode::kMinimum;
        break;
      case LoopOpClass::kInteger:
        defined = ir::IsInt(dtype) || (dtype == v1::BOOL && info.op != LoopOpcode::kShiftLeft &&
                                       info.op != LoopOpcode::kShiftRight);
        break;
      case LoopOpClass::kCompare: defined = info.arity == 2 || ir::IsFloating(dtype); break;
      case LoopOpClass::kLogical: defined = dtype == v1::BOOL; break;
      default: break;
    }
    if (defined) result.push_back(dtype);
  }
  return result;
}

TEST_P(BackendConformanceTest, EveryPointwiseOperatorAndDType) {
  int checked = 0;
  for (uint32_t number = 1; number < 256; ++number) {
    const LoopOpInfo* info = FindLoopOp(number);
    if (info == nullptr) continue;
    for (v1::DType dtype : ArgumentDTypes(*info)) {
      for (v1::VectorDim dim : {v1::VECTOR_OUTER_LAST, v1::VECTOR_NONE}) {
        constexpr int64_t kCount = 1003;
        KernelBuilder b;
        const uint32_t n = b.Const(kCount);
        std::vector<TestBuffer> buffers;
        std::vector<uint32_t> inputs;
        for (int arg = 0; arg < info->arity; ++arg) {
          inputs.push_back(b.Buffer(dtype, v1::READ, n));
          buffers.push_back(RandomBuffer(dtype, kCount, random_));
        }
        const v1::DType result = info->op_class == LoopOpClass::kCompare ? v1::BOOL : dtype;
        const uint32_t out = b.Buffer(result, v1::WRITE, n);
        buffers.push_back(RandomBuffer(result, kCount, random_));
        b.Outer(n);
        b.BeginStage({});
        std::vector<uint32_t> args;
        for (uint32_t input : inputs) args.push_back(b.Load(input, b.Var(0)));
        if (IsDivision(info->op) && !ir::IsFloating(dtype)) {  // a zero divisor is an error: see below
          const uint32_t zero = b.Int(dtype, 0), one = b.Int(dtype, 3);
          args[1] = b.Op(LoopOpcode::kWhere, dtype,
                         {b.Op(LoopOpcode::kEq, v1::BOOL, {args[1], zero}), one, args[1]});
        }
        if (info->op == LoopOpcode::kSoftmaxExp) {
          args[0] = b.Op(LoopOpcode::kNeg, dtype, {b.Op(LoopOpcode::kAbs, dtype, {args[0]})});
        }
        b.Store(out, b.Var(0), b.Op(info->op, result, args));
        b.Schedule(1, 100, dim);
        SCOPED_TRACE(absl::StrCat(info->name, " ", v1::DType_Name(dtype), " ", dim));
        Check(b.Build(), buffers, OpTolerance(info->op, dtype));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 400);
}

// e^-x is infinite there.
TEST_P(BackendConformanceTest, SigmoidWhereItIsSubnormal) {
  KernelBuilder b;
  const uint32_t n = b.Const(40);
  const uint32_t in = b.Buffer(v1::F64, v1::READ, n), out = b.Buffer(v1::F64, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(out, b.Var(0), b.Op(LoopOpcode::kSigmoid, v1::F64, {b.Load(in, b.Var(0))}));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  std::vector<double> numbers;
  for (int k = 0; k < 40; ++k) numbers.push_back(-706.25 - k);
  Check(b.Build(), {FloatBuffer(v1::F64, numbers), RandomBuffer(v1::F64, 40, random_)},
        OpTolerance(LoopOpcode::kSigmoid, v1::F64));
}

TEST_P(BackendConformanceTest, ConversionsBetweenAllDTypes) {
  for (v1::DType from : kStorable) {
    for (v1::DType to : kStorable) {
      for (int64_t count : {1, 40}) {
        KernelBuilder b;
        const uint32_t n = b.Const(count * 10);
        const uint32_t in = b.Buffer(from, v1::READ, n), out = b.Buffer(to, v1::WRITE, n);
        b.Outer(n);
        b.BeginStage({});
        b.Store(out, b.Var(0), b.Op(LoopOpcode::kCast, to, {b.Load(in, b.Var(0))}));
        b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
        SCOPED_TRACE(absl::StrCat(v1::DType_Name(from), " to ", v1::DType_Name(to)));
        Check(b.Build(), {RandomBuffer(from, count * 10, random_), RandomBuffer(to, count * 10, random_)});
      }
    }
  }
}

TEST_P(BackendConformanceTest, Bitcasts) {
  const std::pair<v1::DType, v1::DType> pairs[] = {{v1::F32, v1::I32}, {v1::I32, v1::F32},
                                                   {v1::F64, v1::I64}, {v1::BF16, v1::I16},
                                                   {v1::I16, v1::F16}, {v1::U8, v1::I8}};
  for (auto [from, to] : pairs) {
    KernelBuilder b;
    const uint32_t n = b.Const(77);
    const uint32_t in = b.Buffer(from, v1::READ, n), out = b.Buffer(to, v1::WRITE, n);
    b.Outer(n);
    b.BeginStage({});
    b.Store(out, b.Var(0), b.Op(LoopOpcode::kBitcast, to, {b.Load(in, b.Var(0))}));
    b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
    Check(b.Build(), {IntBuffer(from == v1::F32   ? v1::I32
                                : from == v1::F64 ? v1::I64
                                                  : from,
                                std::vector<int64_t>(77, 5)),
                      RandomBuffer(to, 77, random_)});
  }
}

TEST_P(BackendConformanceTest, TailsAndZeroExtents) {
  for (int64_t count = 0; count <= 33; ++count) {
    for (v1::DType dtype : {v1::F32, v1::BF16, v1::BOOL, v1::I64}) {
      KernelBuilder b;
      const uint32_t n = b.Symbol(0);
      const uint32_t in = b.Buffer(dtype, v1::READ, n), out = b.Buffer(dtype, v1::WRITE, n);
      b.Outer(n);
      b.BeginStage({});
      b.Store(out, b.Var(0), b.Load(in, b.Var(0)));
      b.Schedule(1, 5, v1::VECTOR_OUTER_LAST);
      Check(b.Build(), {RandomBuffer(dtype, count, random_), RandomBuffer(dtype, count, random_)}, {},
            {count});
    }
  }
}

// out[i, j] = in[j, i] + row[j] + column[i], with every way to run the loops.
TEST_P(BackendConformanceTest, TransposesAndBroadcasts) {
  for (v1::DType dtype : {v1::F32, v1::I16, v1::F64, v1::U8}) {
    for (auto [rows, columns] : {std::pair<int64_t, int64_t>{5, 37}, {33, 3}, {1, 16}, {0, 4}, {64, 64}}) {
      for (uint32_t parallel : {0u, 1u, 2u}) {
        for (v1::VectorDim dim : {v1::VECTOR_NONE, v1::VECTOR_OUTER_LAST}) {
          KernelBuilder b;
          const uint32_t r = b.Const(rows), c = b.Const(columns), n = b.Const(rows * columns);
          const uint32_t in = b.Buffer(dtype, v1::READ, n), row = b.Buffer(dtype, v1::READ, c);
          const uint32_t column = b.Buffer(dtype, v1::READ, r), out = b.Buffer(dtype, v1::WRITE, n);
          b.Outer(r);
          b.Outer(c);
          b.BeginStage({});
          const uint32_t i = b.Var(0), j = b.Var(1);
          uint32_t sum = b.Op(LoopOpcode::kAdd, dtype, {b.Load(in, b.Add(b.Mul(j, r), i)), b.Load(row, j)});
          sum = b.Op(LoopOpcode::kAdd, dtype, {sum, b.Load(column, i)});
          b.Store(out, b.Add(b.Mul(i, c), j), sum);
          b.Schedule(parallel, 7, dim);
          Check(b.Build(),
                {RandomBuffer(dtype, rows * columns, random_), RandomBuffer(dtype, columns, random_),
                 RandomBuffer(dtype, rows, random_), RandomBuffer(dtype, rows * columns, random_)});
        }
      }
    }
  }
}

// Strides other than one on both sides, divided and wrapped indices.
TEST_P(BackendConformanceTest, StridedAndDividedIndices) {
  for (v1::DType dtype : kStorable) {
    constexpr int64_t kCount = 70;
    KernelBuilder b;
    const uint32_t n = b.Const(kCount), wide = b.Const(3 * kCount);
    const uint32_t in = b.Buffer(dtype, v1::READ, wide), out = b.Buffer(dtype, v1::WRITE, wide);
    const uint32_t turned = b.Buffer(dtype, v1::WRITE, n), divided = b.Buffer(dtype, v1::WRITE, n);
    b.Outer(n);
    b.BeginStage({});
    const uint32_t i = b.Var(0), three = b.Const(3), seven = b.Const(7);
    const uint32_t x = b.Load(in, b.Mul(i, three));
    b.Store(out, b.Add(b.Mul(i, three), b.Const(1)), x);
    b.Store(turned, b.Add(b.Const(kCount - 1), b.Mul(i, b.Const(-1))), x);
    const uint32_t mixed =
        b.Add(b.Mul(b.Expr(v1::EXPR_MOD, {i, seven}), b.Const(10)), b.Expr(v1::EXPR_FLOORDIV, {i, seven}));
    b.Store(divided, i, b.Load(in, mixed));
    b.Schedule(1, 32, v1::VECTOR_OUTER_LAST);
    SCOPED_TRACE(v1::DType_Name(dtype));
    Check(b.Build(), {RandomBuffer(dtype, 3 * kCount, random_), RandomBuffer(dtype, 3 * kCount, random_),
                      RandomBuffer(dtype, kCount, random_), RandomBuffer(dtype, kCount, random_)});
  }
}

TEST_P(BackendConformanceTest, MaskedLoadsAndStores) {
  for (v1::DType dtype : kStorable) {
    for (v1::VectorDim dim : {v1::VECTOR_NONE, v1::VECTOR_OUTER_LAST}) {
      constexpr int64_t kCount = 45;
      KernelBuilder
          b;  // a padded window: out[i] = 5 ≤ i < 30 ? in[i - 5] : 0, and every third element left alone
      const uint32_t n = b.Const(kCount), inner = b.Const(25);
      const uint32_t in = b.Buffer(dtype, v1::READ, inner), out = b.Buffer(dtype, v1::WRITE, n);
      const uint32_t same = b.Buffer(dtype, v1::WRITE, n), far = b.Buffer(dtype, v1::WRITE, n);
      b.Outer(n);
      b.BeginStage({});
      const uint32_t i = b.Index(b.Var(0));
      const uint32_t inside = b.Op(LoopOpcode::kLogicalAnd, v1::BOOL,
                                   {b.Op(LoopOpcode::kGe, v1::BOOL, {i, b.Int(v1::I64, 5)}),
                                    b.Op(LoopOpcode::kLt, v1::BOOL, {i, b.Int(v1::I64, 30)})});
      const uint32_t third =
          b.Op(LoopOpcode::kNe, v1::BOOL,
               {b.Op(LoopOpcode::kRemainder, v1::I64, {i, b.Int(v1::I64, 3)}), b.Int(v1::I64, 0)});
      const uint32_t never = b.Op(LoopOpcode::kLt, v1::BOOL, {i, b.Int(v1::I64, 0)});
      b.Store(out, b.Var(0), b.Load(in, b.Add(b.Var(0), b.Const(-5)), inside), third);
      b.Store(same, b.Var(0), b.Load(in, b.Const(1000000), never));
      b.Store(far, b.Var(0),
              b.Load(in, b.Add(b.Mul(b.Var(0), b.Const(100000)), b.Const(7)),
                     b.Op(LoopOpcode::kEq, v1::BOOL, {i, b.Int(v1::I64, 0)})));
      b.Schedule(1, 64, dim);
      SCOPED_TRACE(v1::DType_Name(dtype));
      Check(b.Build(), {RandomBuffer(dtype, 25, random_), RandomBuffer(dtype, kCount, random_),
                        RandomBuffer(dtype, kCount, random_), RandomBuffer(dtype, kCount, random_)});
    }
  }
}

TEST_P(BackendConformanceTest, IndirectLoadsAndIndexOutOfRange) {
  for (v1::VectorDim dim : {v1::VECTOR_NONE, v1::VECTOR_OUTER_LAST}) {
    for (int64_t bad : {-1, 0, 16, 34}) {
      for (const auto& [value, mode] :
           {std::pair(20, v1::INDEX_FROM_EITHER_END), std::pair(-21, v1::INDEX_FROM_EITHER_END),
            std::pair(20, v1::INDEX_FROM_START), std::pair(-1, v1::INDEX_FROM_START)}) {
        KernelBuilder b;
        const uint32_t n = b.Const(35), size = b.Const(20);
        const uint32_t table = b.Buffer(v1::F32, v1::READ, b.Const(60)),
                       index = b.Buffer(v1::I64, v1::READ, n);
        const uint32_t out = b.Buffer(v1::F32, v1::WRITE, n);
        b.Outer(n);
        b.BeginStage({});
        const uint32_t at = b.CheckIndex(b.Load(index, b.Var(0)), size, std::nullopt, mode);
        b.Store(out, b.Var(0), b.Load(table, b.Mul(b.Indirect(at), b.Const(3))));
        b.Schedule(1, 64, dim);
        std::vector<int64_t> indices;
        const int64_t least = mode == v1::INDEX_FROM_START ? 0 : -20;
        for (int64_t k = 0; k < 35; ++k) indices.push_back(k == bad ? value : (k * 7) % (20 - least) + least);
        Check(b.Build(), {RandomBuffer(v1::F32, 60, random_), IntBuffer(v1::I64, indices),
                          RandomBuffer(v1::F32, 35, random_)});
      }
    }
  }
}

TEST_P(BackendConformanceTest, MaskedChecksDoNotFail) {
  KernelBuilder b;
  const uint32_t n = b.Const(35), size = b.Const(20);
  const uint32_t table = b.Buffer(v1::F32, v1::READ, size), index = b.Buffer(v1::I64, v1::READ, n);
  const uint32_t out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const uint32_t i = b.Load(index, b.Var(0));
  const uint32_t wanted = b.Op(LoopOpcode::kNe, v1::BOOL, {i, b.Int(v1::I64, -100)});
  const uint32_t at = b.CheckIndex(i, size, wanted);
  b.Store(out, b.Var(0), b.Load(table, b.Indirect(at), wanted));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  std::vector<int64_t> indices;
  for (int64_t k = 0; k < 35; ++k) indices.push_back(k % 4 == 1 ? -100 : k % 20);
  Check(b.Build(), {RandomBuffer(v1::F32, 20, random_), IntBuffer(v1::I64, indices),
                    RandomBuffer(v1::F32, 35, random_)});
}

TEST_P(BackendConformanceTest, IntegerDivisionByZero) {
  for (v1::DType dtype : {v1::I64, v1::I32, v1::U8, v1::I16}) {
    for (LoopOpcode op : {LoopOpcode::kFloorDiv, LoopOpcode::kTruncDiv, LoopOpcode::kRemainder}) {
      for (int64_t zero_at : {-1, 3, 22}) {
        KernelBuilder b;
        const uint32_t n = b.Const(23);
        const uint32_t x = b.Buffer(dtype, v1::READ, n), y = b.Buffer(dtype, v1::READ, n),
                       out = b.Buffer(dtype, v1::WRITE, n);
        b.Outer(n);
        b.BeginStage({});
        b.Store(out, b.Var(0), b.Op(op, dtype, {b.Load(x, b.Var(0)), b.Load(y, b.Var(0))}));
        b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
        std::vector<int64_t> divisors;
        for (int64_t k = 0; k < 23; ++k) divisors.push_back(k == zero_at ? 0 : k % 5 == 2 ? -1 : k + 1);
        Check(b.Build(), {RandomBuffer(dtype, 23, random_), IntBuffer(dtype, divisors),
                          RandomBuffer(dtype, 23, random_)});
      }
    }
  }
}

TEST_P(BackendConformanceTest, RandomBits) {
  for (v1::VectorDim dim : {v1::VECTOR_NONE, v1::VECTOR_OUTER_LAST}) {
    KernelBuilder b;
    const uint32_t n = b.Const(100), one = b.Const(1);
    const uint32_t seed = b.Buffer(v1::I64, v1::READ, one), out = b.Buffer(v1::I64, v1::WRITE, n);
    b.Outer(n);
    b.BeginStage({});
    const uint32_t flat = b.Index(b.Add(b.Var(0), b.Const((int64_t{1} << 35) + 5)));
    b.Store(out, b.Var(0),
            b.Op(LoopOpcode::kRandBits, v1::I64, {b.Load(seed, b.Const(0)), flat, b.Int(v1::I64, 7)}));
    b.Schedule(1, 64, dim);
    Check(b.Build(), {IntBuffer(v1::I64, {0x123456789abcdef}), RandomBuffer(v1::I64, 100, random_)});
  }
}

INSTANTIATE_TEST_SUITE_P(BackEnds, BackendConformanceTest,
                         testing::Values("interpreter", "avx2", "avx512", "neon", "gpu", "gpu_members",
                                         "simulated_gpu", "simulated_gpu_members", "assembled"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kiln
