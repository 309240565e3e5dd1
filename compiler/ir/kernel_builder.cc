#include "compiler/ir/kernel_builder.h"

#include <algorithm>
#include <cstring>

#include "compiler/ir/reduce_kinds.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {

KernelBuilder::KernelBuilder() {
  kernel_.set_format_version(kKernelFormatVersion);
  kernel_.mutable_schedule()->set_chunk(1);
}

uint32_t KernelBuilder::Expr(v1::ExprOp op, const std::vector<uint32_t>& args) {
  v1::ExprNode* node = kernel_.add_exprs();
  node->set_op(op);
  for (uint32_t arg : args) node->add_args(arg);
  return static_cast<uint32_t>(kernel_.exprs_size() - 1);
}

uint32_t KernelBuilder::Const(int64_t value) {
  uint32_t id = Expr(v1::EXPR_CONST, {});
  kernel_.mutable_exprs(static_cast<int>(id))->set_value(value);
  return id;
}

uint32_t KernelBuilder::Symbol(uint32_t symbol) {
  uint32_t id = Expr(v1::EXPR_SYMBOL, {});
  kernel_.mutable_exprs(static_cast<int>(id))->set_value(symbol);
  kernel_.set_symbol_count(std::max(kernel_.symbol_count(), symbol + 1));
  return id;
}

uint32_t KernelBuilder::Var(uint32_t loop) {
  uint32_t id = Expr(v1::EXPR_VAR, {});
  kernel_.mutable_exprs(static_cast<int>(id))->set_value(loop);
  return id;
}

uint32_t KernelBuilder::Indirect(uint32_t op) {
  uint32_t id = Expr(v1::EXPR_INDIRECT, {});
  kernel_.mutable_exprs(static_cast<int>(id))->set_value(op);
  return id;
}

uint32_t KernelBuilder::Buffer(v1::DType dtype, v1::BufferAccess access, uint32_t span) {
  v1::KernelBuffer* buffer = kernel_.add_buffers();
  buffer->set_dtype(dtype);
  buffer->set_access(access);
  buffer->set_span(span);
  return static_cast<uint32_t>(kernel_.buffers_size() - 1);
}

uint32_t KernelBuilder::Outer(uint32_t extent) {
  kernel_.add_outer(extent);
  return static_cast<uint32_t>(kernel_.outer_size() - 1);
}

void KernelBuilder::BeginStage(const std::vector<uint32_t>& inner) {
  v1::Stage* stage = kernel_.add_stages();
  for (uint32_t extent : inner) stage->add_inner(extent);
}

v1::LoopOp* KernelBuilder::Append(LoopOpcode op, v1::DType dtype, const std::vector<uint32_t>& args) {
  v1::LoopOp* added = kernel_.mutable_stages(kernel_.stages_size() - 1)->add_ops();
  added->set_op(static_cast<uint32_t>(op));
  added->set_dtype(dtype);
  for (uint32_t arg : args) added->add_args(arg);
  dtypes_.push_back(dtype);
  return added;
}

uint32_t KernelBuilder::Op(LoopOpcode op, v1::DType dtype, const std::vector<uint32_t>& args, uint32_t mode) {
  Append(op, dtype, args)->set_mode(mode);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Float(v1::DType dtype, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  Append(LoopOpcode::kConstant, dtype, {})->set_bits(bits);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Int(v1::DType dtype, int64_t value) {
  Append(LoopOpcode::kConstant, dtype, {})->set_bits(static_cast<uint64_t>(value));
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Index(uint32_t expr) {
  Append(LoopOpcode::kIndexExpr, v1::I64, {})->set_index(expr);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Load(uint32_t buffer, uint32_t index, std::optional<uint32_t> mask) {
  std::vector<uint32_t> args;
  if (mask) args.push_back(*mask);
  v1::LoopOp* op = Append(LoopOpcode::kLoad, kernel_.buffers(static_cast<int>(buffer)).dtype(), args);
  op->set_buffer(buffer);
  op->set_index(index);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Store(uint32_t buffer, uint32_t index, uint32_t value, std::optional<uint32_t> mask,
                              v1::StoreMode mode) {
  std::vector<uint32_t> args = {value};
  if (mask) args.push_back(*mask);
  v1::LoopOp* op = Append(LoopOpcode::kStore, dtypes_[value], args);
  op->set_buffer(buffer);
  op->set_index(index);
  op->set_mode(mode);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::CheckIndex(uint32_t index, uint32_t size, std::optional<uint32_t> mask,
                                   v1::IndexMode mode) {
  std::vector<uint32_t> args = {index};
  if (mask) args.push_back(*mask);
  v1::LoopOp* op = Append(LoopOpcode::kCheckIndex, v1::I64, args);
  op->set_index(size);
  op->set_mode(mode);
  return static_cast<uint32_t>(dtypes_.size() - 1);
}

uint32_t KernelBuilder::Reduce(v1::ReduceKind kind, uint32_t value) {
  v1::DType dtype = IsArgReduce(kind) ? v1::I64 : dtypes_[value];
  return Op(LoopOpcode::kReduce, dtype, {value}, kind);
}

uint32_t KernelBuilder::Scan(v1::ReduceKind kind, uint32_t value) {
  return Op(LoopOpcode::kScan, dtypes_[value], {value}, kind);
}

void KernelBuilder::Schedule(uint32_t parallel_dims, uint32_t chunk, v1::VectorDim vector_dim) {
  v1::KernelSchedule* schedule = kernel_.mutable_schedule();
  schedule->set_parallel_dims(parallel_dims);
  schedule->set_chunk(chunk);
  schedule->set_vector_dim(vector_dim);
}

}  // namespace kiln
