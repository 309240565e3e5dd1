// Builds kernels for tests, op by op.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "compiler/ir/ops.h"
#include "compiler/support/limits.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

class KernelMaker {
 public:
  KernelMaker() { kernel_.set_format_version(kKernelFormatVersion); }

  // Expressions.
  uint32_t Const(int64_t value) { return Expr(v1::EXPR_CONST, value, {}); }
  uint32_t Var(uint32_t variable) { return Expr(v1::EXPR_VAR, variable, {}); }
  uint32_t Indirect(uint32_t op) { return Expr(v1::EXPR_INDIRECT, op, {}); }
  uint32_t Symbol(uint32_t symbol) {
    if (kernel_.symbol_count() <= symbol) kernel_.set_symbol_count(symbol + 1);
    return Expr(v1::EXPR_SYMBOL, symbol, {});
  }
  uint32_t Expr(v1::ExprOp op, int64_t value, std::initializer_list<uint32_t> args) {
    v1::ExprNode* node = kernel_.add_exprs();
    node->set_op(op);
    node->set_value(value);
    for (uint32_t arg : args) node->add_args(arg);
    return kernel_.exprs_size() - 1;
  }
  uint32_t Add(uint32_t a, uint32_t b) { return Expr(v1::EXPR_ADD, 0, {a, b}); }
  uint32_t Mul(uint32_t a, uint32_t b) { return Expr(v1::EXPR_MUL, 0, {a, b}); }

  uint32_t Buffer(v1::DType dtype, v1::BufferAccess access, int64_t span) {
    v1::KernelBuffer buffer;
    buffer.set_dtype(dtype);
    buffer.set_access(access);
    buffer.set_span(Const(span));
    *kernel_.add_buffers() = buffer;
    return kernel_.buffers_size() - 1;
  }
  void Outer(std::initializer_list<int64_t> extents) {
    for (int64_t extent : extents) kernel_.add_outer(Const(extent));
  }
  void Schedule(uint32_t parallel_dims, uint32_t chunk, v1::VectorDim vector_dim) {
    kernel_.mutable_schedule()->set_parallel_dims(parallel_dims);
    kernel_.mutable_schedule()->set_chunk(chunk);
    kernel_.mutable_schedule()->set_vector_dim(vector_dim);
  }
  void Stage(std::initializer_list<int64_t> inner) {
    v1::Stage stage;
    for (int64_t extent : inner) stage.add_inner(Const(extent));
    *kernel_.add_stages() = stage;
  }

  // Ops of the last stage.
  uint32_t Op(LoopOpcode opcode, v1::DType dtype, std::initializer_list<uint32_t> args) {
    v1::LoopOp* op = kernel_.mutable_stages(kernel_.stages_size() - 1)->add_ops();
    op->set_op(static_cast<uint32_t>(opcode));
    op->set_dtype(dtype);
    for (uint32_t arg : args) op->add_args(arg);
    last_ = op;
    return ops_++;
  }
  uint32_t Load(uint32_t buffer, uint32_t index) {
    const uint32_t id = Op(LoopOpcode::kLoad, kernel_.buffers(buffer).dtype(), {});
    last_->set_buffer(buffer);
    last_->set_index(index);
    return id;
  }
  uint32_t MaskedLoad(uint32_t buffer, uint32_t index, uint32_t mask) {
    const uint32_t id = Load(buffer, index);
    last_->add_args(mask);
    return id;
  }
  uint32_t Store(uint32_t buffer, uint32_t index, uint32_t value, v1::StoreMode mode = v1::STORE_PLAIN) {
    const uint32_t id = Op(LoopOpcode::kStore, kernel_.buffers(buffer).dtype(), {value});
    last_->set_buffer(buffer);
    last_->set_index(index);
    last_->set_mode(mode);
    return id;
  }
  uint32_t MaskedStore(uint32_t buffer, uint32_t index, uint32_t value, uint32_t mask,
                       v1::StoreMode mode = v1::STORE_PLAIN) {
    const uint32_t id = Store(buffer, index, value, mode);
    last_->add_args(mask);
    return id;
  }
  uint32_t Reduce(v1::ReduceKind kind, v1::DType dtype, uint32_t value) {
    const uint32_t id = Op(LoopOpcode::kReduce, dtype, {value});
    last_->set_mode(kind);
    return id;
  }
  uint32_t Scan(v1::ReduceKind kind, v1::DType dtype, uint32_t value) {
    const uint32_t id = Op(LoopOpcode::kScan, dtype, {value});
    last_->set_mode(kind);
    return id;
  }
  uint32_t Float(v1::DType dtype, double value) {
    const uint32_t id = Op(LoopOpcode::kConstant, dtype, {});
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    last_->set_bits(bits);
    return id;
  }
  uint32_t Integer(v1::DType dtype, int64_t value) {
    const uint32_t id = Op(LoopOpcode::kConstant, dtype, {});
    last_->set_bits(static_cast<uint64_t>(value));
    return id;
  }
  uint32_t IndexExpr(uint32_t expr) {
    const uint32_t id = Op(LoopOpcode::kIndexExpr, v1::I64, {});
    last_->set_index(expr);
    return id;
  }
  uint32_t CheckIndex(uint32_t value, uint32_t size) {
    const uint32_t id = Op(LoopOpcode::kCheckIndex, v1::I64, {value});
    last_->set_index(size);
    return id;
  }

  v1::Kernel& kernel() { return kernel_; }

 private:
  v1::Kernel kernel_;
  uint32_t ops_ = 0;
  v1::LoopOp* last_ = nullptr;
};

}  // namespace kiln
