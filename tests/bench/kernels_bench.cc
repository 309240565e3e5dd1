// Memory-bound kernels of the x86 back-end against the machine's triad, one thread:
//   bench/kernels_bench [MiB a buffer]
// Prints the bytes that must move a second, elements a nanosecond, and the time to emit the kernel.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/host_target.h"
#include "tests/conformance/kernel_runner.h"

namespace kiln {
namespace {

// Of this thread's processor time, so that a busy machine disturbs less.
double Now() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(const std::function<void()>& work) {
  const double start = Now();
  work();
  return Now() - start;
}

double Best(const std::function<void()>& work, int rounds) {
  double best = 1e30;
  for (int k = 0; k < rounds; ++k) best = std::min(best, Seconds(work));
  return best;
}

__attribute__((target("avx2,fma"), optimize("O3"))) void Triad(float* a, const float* b, const float* c,
                                                               int64_t n) {
  for (int64_t k = 0; k < n; ++k) a[k] = b[k] + 3.0f * c[k];
}

struct Case {
  std::string name;
  v1::Kernel kernel;
  std::vector<int64_t> elements;  // of each buffer
  double buffers_moved;           // of `count` floats each
  int64_t units;
};

using Expression = std::function<uint32_t(KernelBuilder&, uint32_t x, uint32_t y)>;

Case Pointwise(const std::string& name, int64_t count, int inputs, const Expression& expression,
               v1::DType dtype = v1::F32) {
  KernelBuilder b;
  const uint32_t n = b.Const(count);
  const uint32_t x = b.Buffer(dtype, v1::READ, n), y = b.Buffer(dtype, v1::READ, n),
                 out = b.Buffer(dtype, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  const auto load = [&](uint32_t from) {
    const uint32_t v = b.Load(from, b.Var(0));
    return dtype == v1::F32 ? v : b.Op(LoopOpcode::kCast, v1::F32, {v});
  };
  const uint32_t vx = load(x);
  const uint32_t vy = inputs > 1 ? load(y) : vx;
  uint32_t result = expression(b, vx, vy);
  if (dtype != v1::F32) result = b.Op(LoopOpcode::kCast, dtype, {result});
  b.Store(out, b.Var(0), result);
  b.Schedule(1, 16384, v1::VECTOR_OUTER_LAST);
  return {name,
          b.Build(),
          {count, count, count},
          (inputs + 1.0) * (dtype == v1::F32 ? 1 : 0.5),
          (count + 16383) / 16384};
}

Case Unary(LoopOpcode op, int64_t count) {
  const absl::string_view name = InfoOf(op).name;
  return Pointwise(std::string(name.data(), name.size()), count, 1,
                   [op](KernelBuilder& b, uint32_t x, uint32_t) { return b.Op(op, v1::F32, {x}); });
}

Case Softmax(int64_t rows, int64_t columns) {
  KernelBuilder b;
  const uint32_t r = b.Const(rows), c = b.Const(columns), n = b.Const(rows * columns);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(r);
  const uint32_t index = b.Add(b.Mul(b.Var(0), c), b.Var(1));
  b.BeginStage({c});
  const uint32_t top = b.Reduce(v1::REDUCE_MAX, b.Load(in, index));
  b.BeginStage({c});
  const auto shifted = [&] {
    return b.Op(LoopOpcode::kSoftmaxExp, v1::F32,
                {b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), top})});
  };
  const uint32_t sum = b.Reduce(v1::REDUCE_SUM, shifted());
  b.BeginStage({c});
  b.Store(out, index, b.Op(LoopOpcode::kDiv, v1::F32, {shifted(), sum}));
  b.Schedule(1, 16, v1::VECTOR_INNER_LAST);
  return {"softmax", b.Build(), {rows * columns, rows * columns}, 2, (rows + 15) / 16};
}

Case LayerNorm(int64_t rows, int64_t columns) {
  KernelBuilder b;
  const uint32_t r = b.Const(rows), c = b.Const(columns), n = b.Const(rows * columns);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(r);
  const uint32_t index = b.Add(b.Mul(b.Var(0), c), b.Var(1));
  const auto mean = [&](uint32_t sum) {
    return b.Op(LoopOpcode::kDiv, v1::F32, {sum, b.Float(v1::F32, columns)});
  };
  b.BeginStage({c});
  const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, index));
  b.BeginStage({});
  const uint32_t center = mean(sum);
  b.BeginStage({c});
  const uint32_t off = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), center});
  const uint32_t squares = b.Reduce(v1::REDUCE_SUM, b.Op(LoopOpcode::kMul, v1::F32, {off, off}));
  b.BeginStage({});
  const uint32_t scale = b.Op(LoopOpcode::kRsqrt, v1::F32, {mean(squares)});
  b.BeginStage({c});
  const uint32_t again = b.Op(LoopOpcode::kSub, v1::F32, {b.Load(in, index), center});
  b.Store(out, index, b.Op(LoopOpcode::kMul, v1::F32, {again, scale}));
  b.Schedule(1, 16, v1::VECTOR_INNER_LAST);
  return {"layer_norm", b.Build(), {rows * columns, rows * columns}, 2, (rows + 15) / 16};
}

Case Sum(bool of_rows, int64_t rows, int64_t columns) {
  KernelBuilder b;
  const uint32_t o = b.Const(of_rows ? rows : columns), i = b.Const(of_rows ? columns : rows);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, b.Const(rows * columns)),
                 out = b.Buffer(v1::F32, v1::WRITE, o);
  b.Outer(o);
  b.BeginStage({i});
  const uint32_t row = b.Var(of_rows ? 0 : 1), column = b.Var(of_rows ? 1 : 0);
  const uint32_t sum = b.Reduce(v1::REDUCE_SUM, b.Load(in, b.Add(b.Mul(row, b.Const(columns)), column)));
  b.BeginStage({});
  b.Store(out, b.Var(0), sum);
  b.Schedule(1, 128, of_rows ? v1::VECTOR_INNER_LAST : v1::VECTOR_OUTER_LAST);
  const int64_t results = of_rows ? rows : columns;
  return {of_rows ? "row_sum" : "column_sum", b.Build(), {rows * columns, results}, 1, (results + 127) / 128};
}

Case Transpose(int64_t rows, int64_t columns) {
  KernelBuilder b;
  const uint32_t n = b.Const(rows * columns);
  const uint32_t in = b.Buffer(v1::F32, v1::READ, n), out = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(b.Const(columns));
  b.Outer(b.Const(rows));
  b.BeginStage({});
  b.Store(out, b.Add(b.Mul(b.Var(0), b.Const(rows)), b.Var(1)),
          b.Load(in, b.Add(b.Mul(b.Var(1), b.Const(columns)), b.Var(0))));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  return {"transpose", b.Build(), {rows * columns, rows * columns}, 2, (columns + 63) / 64};
}

int Main(int argc, char** argv) {
  const int64_t count = (argc > 1 ? std::max(1LL, std::strtoll(argv[1], nullptr, 10)) : 64) << 18;
  const bool avx512 = HostHasAvx512();
  auto backend = NewCodegenBackend(X86Target(avx512));
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return 1;
  }
  const int64_t rows = count / 1024;
  std::vector<Case> cases;
  cases.push_back(Pointwise("add", count, 2, [](KernelBuilder& b, uint32_t x, uint32_t y) {
    return b.Op(LoopOpcode::kAdd, v1::F32, {x, y});
  }));
  cases.push_back(Pointwise(
      "add_bf16", count, 2,
      [](KernelBuilder& b, uint32_t x, uint32_t y) { return b.Op(LoopOpcode::kAdd, v1::F32, {x, y}); },
      v1::BF16));
  for (LoopOpcode op : {LoopOpcode::kExp, LoopOpcode::kLog, LoopOpcode::kTanh, LoopOpcode::kErf,
                        LoopOpcode::kSigmoid, LoopOpcode::kSin, LoopOpcode::kLog1p}) {
    cases.push_back(Unary(op, count));
  }
  cases.push_back(Pointwise("pow", count, 2, [](KernelBuilder& b, uint32_t x, uint32_t y) {
    return b.Op(LoopOpcode::kPow, v1::F32, {x, y});
  }));
  cases.push_back(Softmax(rows, 1024));
  cases.push_back(LayerNorm(rows, 1024));
  cases.push_back(Sum(true, rows, 1024));
  cases.push_back(Sum(false, rows, 1024));
  cases.push_back(Transpose(rows, 1024));

  std::vector<float> a(count), b(count), c(count);
  for (int64_t k = 0; k < count; ++k) b[k] = 0.001f * static_cast<float>(k % 4001) - 2, c[k] = 0.5f;
  const double triad = 12.0 * count / Best([&] { Triad(a.data(), b.data(), c.data(), count); }, 5);
  std::printf("%-12s %8s %8s %10s %9s\n", avx512 ? "avx512" : "avx2", "GB/s", "of triad", "ns/element",
              "emit ms");
  std::printf("%-12s %8.1f\n", "triad", triad * 1e-9);
  for (const Case& bench : cases) {
    (void)CompiledKernel::Create(backend->get(), bench.kernel);
    absl::StatusOr<CompiledKernel> kernel = absl::UnknownError("");
    const double emit = Best([&] { kernel = CompiledKernel::Create(backend->get(), bench.kernel); }, 5);
    if (!kernel.ok()) {
      std::fprintf(stderr, "%s: %s\n", bench.name.c_str(), kernel.status().ToString().c_str());
      return 1;
    }
    std::vector<void*> buffers = bench.elements.size() == 3 ? std::vector<void*>{b.data(), c.data(), a.data()}
                                                            : std::vector<void*>{b.data(), a.data()};
    const double seconds = Best([&] { kernel->Run(buffers, 0, bench.units); }, 5);
    const double bytes = 4.0 * count * bench.buffers_moved;
    std::printf("%-12s %8.1f %7.0f%% %10.3f %9.2f\n", bench.name.c_str(), bytes / seconds * 1e-9,
                100 * bytes / seconds / triad, seconds / count * 1e9, emit * 1e3);
  }
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
