// Builds v1::Kernel messages by hand: for tests and small tools. No check is made; VerifyKernel is.
//
//   KernelBuilder b;
//   uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
//   b.Outer(n);
//   b.BeginStage({});
//   b.Store(y, b.Var(0), b.Op(LoopOpcode::kExp, v1::F32, {b.Load(x, b.Var(0))}));
//   v1::Kernel kernel = b.Build();
//
// Threads: one an object.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/ir/ops.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

class KernelBuilder {
 public:
  KernelBuilder();

  // Expressions: positions in Kernel.exprs.
  uint32_t Const(int64_t value);
  uint32_t Symbol(uint32_t symbol);  // symbol_count grows to hold it
  uint32_t Var(uint32_t loop);
  uint32_t Indirect(uint32_t op);
  uint32_t Expr(v1::ExprOp op, const std::vector<uint32_t>& args);
  uint32_t Add(uint32_t a, uint32_t b) { return Expr(v1::EXPR_ADD, {a, b}); }
  uint32_t Mul(uint32_t a, uint32_t b) { return Expr(v1::EXPR_MUL, {a, b}); }

  uint32_t Buffer(v1::DType dtype, v1::BufferAccess access, uint32_t span);
  uint32_t Outer(uint32_t extent);                      // the loop's number
  void BeginStage(const std::vector<uint32_t>& inner);  // ops go to the latest stage

  // Ops: ids.
  uint32_t Op(LoopOpcode op, v1::DType dtype, const std::vector<uint32_t>& args, uint32_t mode = 0);
  uint32_t Float(v1::DType dtype, double value);
  uint32_t Int(v1::DType dtype, int64_t value);
  uint32_t Index(uint32_t expr);
  uint32_t Load(uint32_t buffer, uint32_t index, std::optional<uint32_t> mask = std::nullopt);
  uint32_t Store(uint32_t buffer, uint32_t index, uint32_t value, std::optional<uint32_t> mask = std::nullopt,
                 v1::StoreMode mode = v1::STORE_PLAIN);
  uint32_t CheckIndex(uint32_t index, uint32_t size, std::optional<uint32_t> mask = std::nullopt,
                      v1::IndexMode mode = v1::INDEX_FROM_EITHER_END);
  uint32_t Reduce(v1::ReduceKind kind, uint32_t value);
  uint32_t Scan(v1::ReduceKind kind, uint32_t value);

  void Schedule(uint32_t parallel_dims, uint32_t chunk, v1::VectorDim vector_dim);
  v1::Kernel Build() const { return kernel_; }

 private:
  v1::LoopOp* Append(LoopOpcode op, v1::DType dtype, const std::vector<uint32_t>& args);

  v1::Kernel kernel_;
  std::vector<v1::DType> dtypes_;  // by op
};

}  // namespace kiln
