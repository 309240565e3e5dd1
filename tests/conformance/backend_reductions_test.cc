// Every back-end's reductions, scans, accumulating stores and tiles of points against the interpreter; on a
// GPU by other schedules of threads too.
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/backend_conformance.h"

namespace kiln {
namespace {

class BackendReductionsTest : public BackendConformanceTest {};

TEST_P(BackendReductionsTest, ReductionsOfAllKinds) {
  for (v1::DType dtype : kArithmetic) {
    for (int kind = v1::REDUCE_SUM; kind <= v1::REDUCE_ARGMIN; ++kind) {
      if ((kind == v1::REDUCE_ANY || kind == v1::REDUCE_ALL) != (dtype == v1::BOOL)) continue;
      for (v1::VectorDim dim : kDims) {
        for (auto [outer, inner] :
             {std::pair<int64_t, int64_t>{3, 1}, {2, 33}, {20, 100}, {70, 7}, {4, 0}, {0, 3}}) {
          for (bool rows : {true, false}) {
            if (!Drawn()) continue;
            KernelBuilder b;
            const uint32_t o = b.Const(outer), r = b.Const(inner), n = b.Const(outer * inner);
            const bool arg = kind >= v1::REDUCE_ARGMAX;
            const uint32_t in = b.Buffer(dtype, v1::READ, n),
                           out = b.Buffer(arg ? v1::I64 : dtype, v1::WRITE, o);
            b.Outer(o);
            b.BeginStage({r});
            const uint32_t index =
                rows ? b.Add(b.Mul(b.Var(0), r), b.Var(1)) : b.Add(b.Mul(b.Var(1), o), b.Var(0));
            const uint32_t reduced = b.Reduce(static_cast<v1::ReduceKind>(kind), b.Load(in, index));
            b.BeginStage({});
            b.Store(out, b.Var(0), reduced);
            b.Schedule(1, 16, dim);
            std::vector<TestBuffer> buffers = {RandomBuffer(dtype, outer * inner, random_),
                                               RandomBuffer(arg ? v1::I64 : dtype, outer, random_)};
            Tolerance tolerance;
            if (ir::IsFloating(dtype) && (kind == v1::REDUCE_SUM || kind == v1::REDUCE_PROD)) {
              std::vector<double> values;
              for (int64_t k = 0; k < outer * inner; ++k) values.push_back(std::sin(0.7 * k) * 1.1);
              buffers[0] = FloatBuffer(dtype, values);
              tolerance = {64, 1e-6};
            }
            SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", v1::ReduceKind_Name(kind), " ", dim, " ",
                                      outer, "x", inner, rows ? " rows" : " columns"));
            Check(b.Build(), buffers, tolerance);
          }
        }
      }
    }
  }
}

// Threads that share a row all compute what follows its sum: none may find there what another has stored
// already.
TEST_P(BackendReductionsTest, ASumIsStoredWhereItsOtherTermLies) {
  for (const v1::VectorDim dim : kDims) {
    for (const int64_t columns : {40, 700, 5000}) {
      for (const bool read_back : {false, true}) {
        constexpr int64_t kRows = 5;
        KernelBuilder b;
        const uint32_t r = b.Const(columns), n = b.Const(kRows);
        const uint32_t in = b.Buffer(v1::F32, v1::READ, b.Const(kRows * columns)),
                       total = b.Buffer(v1::F32, v1::READ_WRITE, n), twice = b.Buffer(v1::F32, v1::WRITE, n);
        b.Outer(n);
        b.BeginStage({r});
        const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, b.Add(b.Mul(b.Var(0), r), b.Var(1))));
        b.BeginStage({});
        const uint32_t added = b.Op(LoopOpcode::kAdd, v1::F32, {b.Load(total, b.Var(0)), sum});
        b.Store(total, b.Var(0), added);
        const uint32_t seen = read_back ? b.Load(total, b.Var(0)) : added;
        b.Store(twice, b.Var(0), b.Op(LoopOpcode::kAdd, v1::F32, {seen, seen}));
        b.Schedule(1, 1, dim);
        std::vector<double> values(kRows * columns);
        for (double& value : values) value = static_cast<double>(random_() % 9) - 4;
        SCOPED_TRACE(absl::StrCat(dim, " ", columns, read_back ? " read back" : ""));
        Check(b.Build(), {FloatBuffer(v1::F32, values), FloatBuffer(v1::F32, {1, 2, 3, 4, 5}),
                          FloatBuffer(v1::F32, {0, 0, 0, 0, 0})});
      }
    }
  }
}

// Two inner loops, and two stages over them: layer norm's shape.
TEST_P(BackendReductionsTest, NestedReductionsAndTheirUsers) {
  for (v1::VectorDim dim : kDims) {
    for (auto [a, c] : {std::pair<int64_t, int64_t>{3, 40}, {17, 5}, {4, 64}, {130, 129}}) {
      constexpr int64_t kRows = 19;
      KernelBuilder b;
      const uint32_t rows = b.Const(kRows), ea = b.Const(a), ec = b.Const(c), n = b.Const(kRows * a * c);
      const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
      const uint32_t most = b.Buffer(v1::I64, v1::WRITE, rows);
      b.Outer(rows);
      const uint32_t index = b.Add(b.Mul(b.Var(0), b.Const(a * c)), b.Add(b.Mul(b.Var(1), ec), b.Var(2)));
      b.BeginStage({ea, ec});
      const uint32_t x = b.Load(in, index);
      const uint32_t sum = b.Reduce(v1::REDUCE_SUM, x), top = b.Reduce(v1::REDUCE_ARGMAX, x);
      b.BeginStage({});
      const uint32_t mean =
          b.Op(LoopOpcode::kDiv, v1::F32, {sum, b.Float(v1::F32, static_cast<double>(a * c))});
      b.Store(most, b.Var(0), top);
      b.BeginStage({ea, ec});
      const uint32_t centered = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), mean});
      const uint32_t squares =
          b.Reduce(v1::REDUCE_SUM, b.Op(LoopOpcode::kMul, v1::F32, {centered, centered}));
      b.BeginStage({ea, ec});
      const uint32_t again = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), mean});
      b.Store(out, index,
              b.Op(LoopOpcode::kMul, v1::F32, {again, b.Op(LoopOpcode::kRsqrt, v1::F32, {squares})}));
      b.Schedule(1, 4, dim);
      std::vector<double> values;
      for (int64_t k = 0; k < kRows * a * c; ++k) values.push_back(std::cos(1.3 * k) + 0.1);
      SCOPED_TRACE(absl::StrCat(dim, " ", a, "x", c));
      Check(b.Build(),
            {FloatBuffer(v1::F32, values), RandomBuffer(v1::F32, kRows * a * c, random_),
             RandomBuffer(v1::I64, kRows, random_)},
            {64, 1e-6});
    }
  }
}

// A sum of a million equal numbers, in F32: naive addition would be off by a percent. A GPU's thread adds a
// thousand of them, as torch's do.
TEST_P(BackendReductionsTest, LongSumsKeepTheirBits) {
  for (v1::VectorDim dim : kDims) {
    constexpr int64_t kCount = 1 << 20;
    KernelBuilder b;
    const uint32_t n = b.Const(kCount), one = b.Const(1);
    const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, one);
    b.Outer(one);
    b.BeginStage({n});
    const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, b.Var(1)));
    b.BeginStage({});
    b.Store(out, b.Var(0), sum);
    b.Schedule(0, 1, dim);
    Check(b.Build(), {FloatBuffer(v1::F32, std::vector<double>(kCount, 0.1)), FloatBuffer(v1::F32, {0})},
          {.ulps = runner_->is_gpu() ? 64.0 : 2.0});
  }
}

// Of loops that do not merge, with runs of the inner one that are shorter and longer than what is added up in
// F32, of known and of unknown length. Naive addition would be off by hundreds.
TEST_P(BackendReductionsTest, LongSumsOfLoopsKeepTheirBits) {
  for (v1::VectorDim dim : kDims) {
    for (auto [a, c] :
         {std::pair<int64_t, int64_t>{3000, 1}, {3000, 10}, {1000, 80}, {700, 300}, {40, 3000}}) {
      for (bool known : {true, false}) {
        constexpr int64_t kOuter = 5;
        KernelBuilder b;
        const uint32_t rows = b.Const(kOuter), ea = known ? b.Const(a) : b.Symbol(0),
                       ec = known ? b.Const(c) : b.Symbol(1), row = b.Mul(ea, ec);
        const uint32_t in = b.Buffer(v1::F32, v1::READ, b.Mul(rows, row)),
                       out = b.Buffer(v1::F32, v1::WRITE, rows);
        b.Outer(rows);
        b.BeginStage({ea, ec});
        const uint32_t index = b.Add(b.Mul(b.Var(0), row), b.Add(b.Mul(b.Var(1), ec), b.Var(2)));
        const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, index));
        b.BeginStage({});
        b.Store(out, b.Var(0), sum);
        b.Schedule(1, 1, dim);
        SCOPED_TRACE(absl::StrCat(dim, " ", a, "x", c, known ? "" : ", unknown"));
        const std::vector<double> values(kOuter * a * c, 0.1);
        Check(b.Build(), {FloatBuffer(v1::F32, values), FloatBuffer(v1::F32, std::vector<double>(kOuter))},
              {.ulps = runner_->is_gpu() ? 64.0 : 8.0},
              known ? std::vector<int64_t>{} : std::vector<int64_t>{a, c});
      }
    }
  }
}

// Exponentials of a row whose sum divides them: a back-end may keep them, but not where the second ones are
// of other numbers: of another buffer, or of the row after it was overwritten.
TEST_P(BackendReductionsTest, ExponentialsOfARowAgain) {
  enum class Again { kSame, kOtherBuffer, kOverwritten };
  for (Again again : {Again::kSame, Again::kOtherBuffer, Again::kOverwritten}) {
    for (int64_t columns : {3, 16, 37, 1000}) {
      for (v1::VectorDim dim : kDims) {
        constexpr int64_t kRows = 9;
        KernelBuilder b;
        const uint32_t r = b.Const(kRows), c = b.Const(columns), n = b.Const(kRows * columns);
        const bool overwritten = again == Again::kOverwritten;
        const uint32_t x = b.Buffer(v1::F32, overwritten ? v1::READ_WRITE : v1::READ, n),
                       other = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
        b.Outer(r);
        const uint32_t index = b.Add(b.Mul(b.Var(0), c), b.Var(1));
        const auto exponential = [&](uint32_t buffer) {
          return b.Op(LoopOpcode::kExp, v1::F32, {b.Load(buffer, index)});
        };
        b.BeginStage({c});
        const uint32_t sum = b.Reduce(v1::REDUCE_SUM, exponential(x));
        if (overwritten) {
          b.BeginStage({c});
          b.Store(x, index, b.Op(LoopOpcode::kMul, v1::F32, {b.Load(x, index), b.Float(v1::F32, 0.5)}));
        }
        b.BeginStage({c});
        const uint32_t part =
            b.Op(LoopOpcode::kDiv, v1::F32, {exponential(again == Again::kOtherBuffer ? other : x), sum});
        b.Store(out, index, b.Op(LoopOpcode::kAdd, v1::F32, {part, b.Load(other, index)}));
        b.Schedule(1, 4, dim);
        SCOPED_TRACE(absl::StrCat(static_cast<int>(again), " ", columns, " ", dim));
        std::vector<double> values, others;
        std::uniform_real_distribution<double> some(-4, 4);
        for (int64_t k = 0; k < kRows * columns; ++k) {
          values.push_back(some(random_));
          others.push_back(some(random_));
        }
        Check(b.Build(),
              {FloatBuffer(v1::F32, values), FloatBuffer(v1::F32, others), FloatBuffer(v1::F32, values)},
              {64, 1e-6});
      }
    }
  }
}

TEST_P(BackendReductionsTest, Scans) {
  for (v1::DType dtype : {v1::I64, v1::I32, v1::F32, v1::F64, v1::U8}) {
    for (v1::ReduceKind kind : {v1::REDUCE_SUM, v1::REDUCE_PROD, v1::REDUCE_MAX, v1::REDUCE_MIN}) {
      for (v1::VectorDim dim : kDims) {
        constexpr int64_t kOuter = 19, kMiddle = 2, kInner = 21;
        KernelBuilder b;
        const uint32_t o = b.Const(kOuter), m = b.Const(kMiddle), r = b.Const(kInner),
                       n = b.Const(kOuter * kMiddle * kInner);
        const uint32_t in = b.Buffer(dtype, v1::READ, n), out = b.Buffer(dtype, v1::WRITE, n);
        b.Outer(o);
        b.BeginStage({m, r});
        const uint32_t index =
            b.Add(b.Mul(b.Var(0), b.Const(kMiddle * kInner)), b.Add(b.Mul(b.Var(1), r), b.Var(2)));
        b.Store(out, index, b.Scan(kind, b.Load(in, index)));
        b.Schedule(1, 8, dim);
        std::vector<double> values;
        for (int k = 0; k < kOuter * kMiddle * kInner; ++k) values.push_back((k * 37 % 11) * 0.25 - 1);
        const TestBuffer data = ir::IsFloating(dtype)
                                    ? FloatBuffer(dtype, values)
                                    : RandomBuffer(dtype, kOuter * kMiddle * kInner, random_);
        SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", kind, " ", dim));
        Check(b.Build(), {data, RandomBuffer(dtype, kOuter * kMiddle * kInner, random_)}, {32, 1e-6});
      }
    }
  }
}

// Embedding backward: rows that meet in one element, in order.
TEST_P(BackendReductionsTest, AccumulatingStores) {
  for (v1::DType dtype : {v1::F32, v1::I64, v1::BF16, v1::I8, v1::F64}) {
    for (v1::VectorDim dim : kDims) {
      for (bool masked : {false, true}) {
        constexpr int64_t kItems = 50, kWidth = 20, kBins = 4;
        KernelBuilder b;
        const uint32_t items = b.Const(kItems), width = b.Const(kWidth), bins = b.Const(kBins);
        const uint32_t in = b.Buffer(dtype, v1::READ, b.Const(kItems * kWidth)),
                       index = b.Buffer(v1::I64, v1::READ, items);
        const uint32_t out = b.Buffer(dtype, v1::READ_WRITE, b.Const(kBins * kWidth));
        const uint32_t colliding = b.Buffer(dtype, v1::READ_WRITE, bins);
        b.Outer(width);
        b.BeginStage({items});
        const uint32_t j = b.Var(0), i = b.Var(1);
        const uint32_t bin = b.CheckIndex(b.Load(index, i), bins);
        const uint32_t x = b.Load(in, b.Add(b.Mul(i, width), j));
        std::optional<uint32_t> mask;
        if (masked) mask = b.Op(LoopOpcode::kNe, v1::BOOL, {b.Index(i), b.Int(v1::I64, 3)});
        b.Store(out, b.Add(b.Mul(b.Indirect(bin), width), j), x, mask, v1::STORE_ACCUMULATE);
        b.Store(colliding, b.Indirect(bin), x, mask, v1::STORE_ACCUMULATE);
        b.Schedule(0, 1, dim);
        std::vector<int64_t> indices;
        for (int k = 0; k < kItems; ++k) indices.push_back((k * k) % kBins - (k % 2 ? kBins : 0));
        std::vector<double> values;
        for (int k = 0; k < kItems * kWidth; ++k) values.push_back((k * 13 % 29) * 0.125);
        const auto data = [&](const std::vector<double>& v) {
          if (dtype != v1::I64 && dtype != v1::I8) return FloatBuffer(dtype, v);
          return IntBuffer(dtype, std::vector<int64_t>(v.begin(), v.end()));
        };
        SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", dim, masked ? " masked" : ""));
        // Within one outer point the order is the program's; between points of one unit it is free.
        Check(b.Build(),
              {data(values), IntBuffer(v1::I64, indices), data(std::vector<double>(kBins * kWidth, 1)),
               data(std::vector<double>(kBins, 0))},
              {dtype == v1::BF16 ? 64.0 : 0.0, 0});
      }
    }
  }
}

// Rows reduced and summed down their columns, a strip of rows for each unit: the last one is shorter. Widths
// for one warp a row, for several, with iterations that not all threads have, and some that no vectors
// divide.
TEST_P(BackendReductionsTest, StripsOfRowsSummedDownTheirColumns) {
  for (v1::DType dtype : {v1::F32, v1::BF16}) {
    for (const auto& [count, width] : std::vector<std::pair<int64_t, int64_t>>{
             {37, 4}, {37, 77}, {37, 128}, {37, 768}, {37, 1000}, {37, 2048}, {1030, 1280}}) {
      for (const bool own_elements : {true, false}) {
        const int64_t strip_rows = count > 100 ? 100 : 8;
        const int64_t strips = (count + strip_rows - 1) / strip_rows;
        if (!own_elements && count > 100) continue;
        KernelBuilder b;
        const uint32_t rows = b.Const(count), columns = b.Const(width);
        const uint32_t in = b.Buffer(dtype, v1::READ, b.Const(count * width)),
                       out = b.Buffer(dtype, v1::WRITE, b.Const(count * width)),
                       sums = b.Buffer(v1::F32, v1::READ_WRITE, b.Const(strips * width)),
                       squares = b.Buffer(v1::F32, v1::READ_WRITE, b.Const(strips * width));
        b.Outer(rows);
        const uint32_t row = b.Var(0), column = b.Var(1), at = b.Add(b.Mul(row, columns), column);
        const uint32_t strip = b.Expr(v1::EXPR_FLOORDIV, {row, b.Const(strip_rows)});
        // Where strips share elements, nothing of them may stay in registers while others add.
        const uint32_t place = own_elements ? b.Add(column, b.Mul(strip, columns)) : column;
        const auto load = [&] {
          const uint32_t loaded = b.Load(in, at);
          return dtype == v1::BF16 ? b.Op(LoopOpcode::kCast, v1::F32, {loaded}) : loaded;
        };
        b.BeginStage({columns});
        const uint32_t x = load();
        const uint32_t most = b.Reduce(v1::REDUCE_MAX, x);
        b.Store(sums, place, x, std::nullopt, v1::STORE_ACCUMULATE);
        b.BeginStage({columns});
        const uint32_t apart = b.Op(LoopOpcode::kSub, v1::F32, {most, load()});
        b.Store(squares, place, b.Op(LoopOpcode::kMul, v1::F32, {apart, apart}), std::nullopt,
                v1::STORE_ACCUMULATE);
        b.Store(out, at, dtype == v1::BF16 ? b.Op(LoopOpcode::kCast, dtype, {apart}) : apart);
        b.Schedule(own_elements ? 1 : 0, own_elements ? strip_rows : 1, v1::VECTOR_INNER_LAST);
        std::vector<double> values;
        for (int64_t k = 0; k < count * width; ++k)
          values.push_back(static_cast<double>(k * 13 % 29) * 0.125);
        const std::vector<double> before(static_cast<size_t>(strips * width), 0.5);
        SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", width, own_elements ? "" : " shared"));
        Check(b.Build(), {FloatBuffer(dtype, values), FloatBuffer(dtype, values),
                          FloatBuffer(v1::F32, before), FloatBuffer(v1::F32, before)});
      }
    }
  }
}

// Columns, of which several threads share one: what is stored between two loops, and read by the second, also
// where it overwrites what the kernel has read.
TEST_P(BackendReductionsTest, StoresBetweenLoopsDownColumns) {
  for (const auto& [columns, rows] :
       std::vector<std::pair<int64_t, int64_t>>{{5, 70}, {40, 600}, {33, 2000}}) {
    for (const bool overwrites : {false, true}) {
      KernelBuilder b;
      const uint32_t width = b.Const(columns), height = b.Const(rows);
      const uint32_t in = b.Buffer(v1::F32, v1::READ, b.Const(columns * rows)),
                     out = b.Buffer(v1::F32, v1::WRITE, b.Const(columns * rows)),
                     sums = b.Buffer(v1::F32, overwrites ? v1::READ_WRITE : v1::WRITE, width);
      b.Outer(width);
      const uint32_t column = b.Var(0), at = b.Add(column, b.Mul(b.Var(1), width));
      b.BeginStage({height});
      const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, at));
      b.BeginStage({});
      uint32_t kept = sum;
      if (overwrites) kept = b.Op(LoopOpcode::kAdd, v1::F32, {b.Load(sums, column), sum});
      b.Store(sums, column, kept);
      b.BeginStage({height});
      b.Store(out, at, b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, at), kept}));
      b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
      std::vector<double> values;
      for (int64_t k = 0; k < columns * rows; ++k) values.push_back(static_cast<double>(k * 13 % 29) * 0.125);
      const std::vector<double> before(static_cast<size_t>(columns), 0.5);
      SCOPED_TRACE(absl::StrCat(columns, " columns of ", rows, overwrites ? ", added to" : ""));
      Check(b.Build(),
            {FloatBuffer(v1::F32, values), FloatBuffer(v1::F32, values), FloatBuffer(v1::F32, before)});
    }
  }
}

// The sum of a long row's exponentials beside its maximum, where a row or part of it is not finite too.
TEST_P(BackendReductionsTest, SumsOfExponentialsOfLongRows) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (v1::DType dtype : {v1::F32, v1::BF16}) {
    for (const int64_t kRows = 7; const int64_t width : {16384, 16387, 20000, 32768}) {
      KernelBuilder b;
      const uint32_t rows = b.Const(kRows), columns = b.Const(width);
      const uint32_t in = b.Buffer(dtype, v1::READ, b.Const(kRows * width)),
                     largest = b.Buffer(v1::F32, v1::WRITE, rows), sums = b.Buffer(v1::F32, v1::WRITE, rows);
      b.Outer(rows);
      const uint32_t row = b.Var(0), at = b.Add(b.Mul(row, columns), b.Var(1));
      const auto load = [&] {
        return dtype == v1::BF16 ? b.Op(LoopOpcode::kCast, v1::F32, {b.Load(in, at)}) : b.Load(in, at);
      };
      b.BeginStage({columns});
      const uint32_t most = b.Reduce(v1::REDUCE_MAX, load());
      b.BeginStage({columns});
      const uint32_t power =
          b.Op(LoopOpcode::kExp, v1::F32, {b.Op(LoopOpcode::kSub, v1::F32, {load(), most})});
      const uint32_t sum = b.Reduce(v1::REDUCE_SUM, power);
      b.BeginStage({});
      b.Store(largest, row, most);
      b.Store(sums, row, sum);
      b.Schedule(1, 1, v1::VECTOR_INNER_LAST);
      std::vector<double> values, none(kRows, 0);
      for (int64_t k = 0; k < kRows * width; ++k) {
        const int64_t column = k % width;
        double value = static_cast<double>(k * 7919 % 4001) / 256 - 8 + static_cast<double>(column) / 4096;
        if (k / width == 1 || (k / width == 2 && column != width - 1)) value = -kInfinity;
        if (k / width == 3 && column == 5000) value = kInfinity;
        if (k / width == 4 && column == width / 2) value = std::nan("");
        if (k / width == 5 && column < width / 2) value = -kInfinity;
        values.push_back(value);
      }
      SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", width));
      Check(b.Build(), {FloatBuffer(dtype, values), FloatBuffer(v1::F32, none), FloatBuffer(v1::F32, none)},
            {64, 1e-6});
    }
  }
}

// An embedding's gradient beside a reduction of the same rows; several rows go to one place.
TEST_P(BackendReductionsTest, RowsScatteredBesideTheirReduction) {
  for (v1::DType dtype : {v1::F32, v1::BF16, v1::I64}) {
    for (int64_t width : {1, 20, 64, 77, 768}) {
      constexpr int64_t kRows = 40, kBins = 6;
      KernelBuilder b;
      const uint32_t rows = b.Const(kRows), columns = b.Const(width), bins = b.Const(kBins);
      const uint32_t in = b.Buffer(dtype, v1::READ, b.Const(kRows * width)),
                     index = b.Buffer(v1::I64, v1::READ, rows),
                     out = b.Buffer(dtype, v1::READ_WRITE, b.Const(kBins * width));
      b.Outer(rows);
      const uint32_t row = b.Var(0), column = b.Var(1), at = b.Add(b.Mul(row, columns), column);
      b.BeginStage({});
      const uint32_t bin = b.CheckIndex(b.Load(index, row), bins);
      b.BeginStage({columns});
      const bool half = dtype == v1::BF16;
      const v1::DType wide = half ? v1::F32 : dtype;
      const auto load = [&] {
        const uint32_t loaded = b.Load(in, at);
        return half ? b.Op(LoopOpcode::kCast, wide, {loaded}) : loaded;
      };
      const uint32_t most = b.Reduce(v1::REDUCE_MAX, load());
      b.BeginStage({columns});
      const uint32_t value = b.Op(LoopOpcode::kSub, wide, {most, load()});
      b.Store(out, b.Add(b.Mul(b.Indirect(bin), columns), column),
              half ? b.Op(LoopOpcode::kCast, dtype, {value}) : value, std::nullopt, v1::STORE_ACCUMULATE);
      b.Schedule(1, 1, v1::VECTOR_INNER_LAST);
      std::vector<int64_t> indices;
      for (int64_t k = 0; k < kRows; ++k) indices.push_back(k * k % kBins - (k % 3 == 0 ? kBins : 0));
      std::vector<double> values;
      for (int64_t k = 0; k < kRows * width; ++k) values.push_back(static_cast<double>(k * 13 % 29));
      const auto data = [&](const std::vector<double>& v) {
        return dtype == v1::I64 ? IntBuffer(dtype, std::vector<int64_t>(v.begin(), v.end()))
                                : FloatBuffer(dtype, v);
      };
      SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", width));
      Check(b.Build(),
            {data(values), IntBuffer(v1::I64, indices),
             data(std::vector<double>(static_cast<size_t>(kBins * width), 1))},
            {dtype == v1::BF16 ? 64.0 : 0.0, 0});
    }
  }
}

// So many points that a GPU's threads take several: rows that start off aligned addresses, or end between
// them.
TEST_P(BackendReductionsTest, ManyUnevenRows) {
  for (v1::DType dtype : {v1::F32, v1::BF16, v1::I8}) {
    for (const auto& [width, from, to] :
         {std::tuple<int64_t, int64_t, int64_t>{77, 77, 80}, {76, 80, 76}, {77, 78, 77}, {80, 80, 96}}) {
      const int64_t rows = 550000 / width;
      KernelBuilder b;
      const uint32_t in = b.Buffer(dtype, v1::READ, b.Const(rows * from)),
                     out = b.Buffer(dtype, v1::WRITE, b.Const(rows * to));
      b.Outer(b.Const(rows));
      b.Outer(b.Const(width));
      b.BeginStage({});
      const uint32_t row = b.Var(0), column = b.Var(1);
      const uint32_t value = b.Load(in, b.Add(b.Mul(row, b.Const(from)), column));
      b.Store(out, b.Add(b.Mul(row, b.Const(to)), column), value);
      b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
      SCOPED_TRACE(absl::StrCat(v1::DType_Name(dtype), " ", width, " of ", from, " to ", to));
      Check(b.Build(), {RandomBuffer(dtype, rows * from, random_), RandomBuffer(dtype, rows * to, random_)});
    }
  }
}

// Blocks take tiles of so many points.
TEST_P(BackendReductionsTest, ManyTransposedPoints) {
  constexpr int64_t kRows = 250, kColumns = 300;
  KernelBuilder b;
  const uint32_t r = b.Const(kRows), c = b.Const(kColumns), n = b.Const(kRows * kColumns);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(r);
  b.Outer(c);
  b.BeginStage({});
  const uint32_t i = b.Var(0), j = b.Var(1);
  b.Store(out, b.Add(b.Mul(i, c), j), b.Load(in, b.Add(b.Mul(j, r), i)));
  b.Schedule(2, 1, v1::VECTOR_OUTER_LAST);
  Check(b.Build(),
        {RandomBuffer(v1::F32, kRows * kColumns, random_), RandomBuffer(v1::F32, kRows * kColumns, random_)});
}

INSTANTIATE_TEST_SUITE_P(BackEnds, BackendReductionsTest,
                         testing::Values("interpreter", "avx2", "avx512", "neon", "neon_schedules", "gpu",
                                         "gpu_schedules", "gpu_members", "simulated_gpu",
                                         "simulated_gpu_schedules", "simulated_gpu_members", "assembled"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kiln
