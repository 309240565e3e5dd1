// Loop graphs by hand, for tests of the scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/lower/loop_recorder.h"
#include "compiler/schedule/schedule.h"
#include "gtest/gtest.h"

namespace kiln::testing {

inline constexpr int64_t kUnknown = -1;  // a size that changes from call to call

// Loop graphs by hand: dense F32 buffers, one node at a time.
class Maker {
 public:
  LoopGraph graph;

  ExprId C(int64_t value) { return graph.exprs.Const(value); }
  // Of a tensor or a loop.
  ExprId Size(int64_t size) {
    return size == kUnknown ? graph.exprs.Symbol(0, {1, int64_t{1} << 32}) : C(size);
  }

  BufferId Buffer(const std::vector<int64_t>& sizes, LoopBuffer::Kind kind = LoopBuffer::Kind::kOwned) {
    LoopBuffer buffer;
    buffer.kind = kind;
    for (int64_t size : sizes) buffer.sizes.push_back(Size(size));
    buffer.strides = ContiguousStrides(graph.exprs, buffer.sizes);
    buffer.span = graph.exprs.Product(buffer.sizes);
    if (kind == LoopBuffer::Kind::kInput) {
      buffer.input = static_cast<uint32_t>(graph.inputs.size());
      graph.inputs.emplace_back();
      graph.input_types.emplace_back();
    }
    graph.buffers.push_back(buffer);
    return static_cast<BufferId>(graph.buffers.size() - 1);
  }
  BufferId Input(const std::vector<int64_t>& sizes) { return Buffer(sizes, LoopBuffer::Kind::kInput); }

  std::vector<LoopVar> Loops(const std::vector<int64_t>& extents) {
    std::vector<LoopVar> vars;
    for (int64_t extent : extents) {
      LoopVar var;
      var.var = next_var_++;
      var.extent = Size(extent);
      var.leaf = graph.exprs.Var(var.var, var.extent);
      vars.push_back(var);
    }
    return vars;
  }

  // Row-major position in `buffer`; a missing loop is a broadcast dimension of size 1.
  ExprId At(BufferId buffer, const std::vector<LoopVar>& vars) {
    ExprId index = C(0);
    const LoopBuffer& data = graph.buffers[buffer];
    for (size_t i = 0; i < vars.size(); ++i) {
      index = graph.exprs.Add(index, graph.exprs.Mul(vars[i].leaf, data.strides[i]));
    }
    return index;
  }

  using BodyFn =
      absl::FunctionRef<void(LoopRecorder&, const std::vector<LoopVar>&, const std::vector<LoopVar>&)>;
  void Node(const std::vector<int64_t>& outer, const std::vector<int64_t>& inner, BodyFn body) {
    LoopGraphNode node;
    node.loops.outer = Loops(outer);
    node.loops.inner = Loops(inner);
    LoopRecorder recorder(graph.exprs);
    body(recorder, node.loops.outer, node.loops.inner);
    ASSERT_TRUE(recorder.status().ok()) << recorder.status();
    node.loops.body = recorder.TakeBody();
    node.loops.operators = {"aten.test.default"};
    graph.nodes.push_back(std::move(node));
  }

  void Pointwise(const std::vector<int64_t>& sizes, const std::vector<BufferId>& from, BufferId to,
                 LoopOpcode op) {
    Node(sizes, {}, [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>&) {
      std::vector<LoopOpId> values;
      for (BufferId b : from) {
        std::vector<LoopVar> vars(o.begin(), o.begin() + graph.buffers[b].sizes.size());
        values.push_back(r.Load(b, v1::F32, At(b, vars)));
      }
      r.Store(to, v1::F32, At(to, o),
              values.size() == 1 ? r.Unary(op, values[0]) : r.Binary(op, values[0], values[1]));
    });
  }

  // to[r] = reduce over c of from[r, c]
  void RowReduce(int64_t rows, int64_t columns, BufferId from, BufferId to, v1::ReduceKind kind) {
    Node({rows}, {columns},
         [&](LoopRecorder& r, const std::vector<LoopVar>& o, const std::vector<LoopVar>& i) {
           LoopOpId value = r.Load(from, v1::F32, At(from, {o[0], i[0]}));
           r.Store(to, v1::F32, At(to, o), r.Reduce(kind, value));
         });
  }

  void Call(const std::string& target, const std::vector<BufferId>& from, BufferId to) {
    LoopGraphNode node;
    node.kind = LoopGraphNode::Kind::kCall;
    node.call.target = target;
    for (BufferId b : from) node.call.tensors.push_back(Whole(b));
    node.call.results = {to};
    graph.nodes.push_back(std::move(node));
  }

  BufferView Whole(BufferId b) {
    const LoopBuffer& data = graph.buffers[b];
    return {b, data.dtype, data.sizes, data.strides, C(0)};
  }
  void Output(BufferId b) {
    LoopGraphOutput output;
    output.kind = LoopGraphOutput::Kind::kView;
    output.view = Whole(b);
    graph.outputs.push_back(output);
  }

  Schedule Run(bool fuse = true, const Machine& machine = {}) {
    ScheduleOptions options;
    options.fuse = fuse;
    options.machine = machine;
    absl::StatusOr<Schedule> schedule = ScheduleLoops(graph, options);
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    if (!schedule.ok()) return {};
    for (const ScheduledStep& step : schedule->steps) {
      const auto* kernel = std::get_if<ScheduledKernel>(&step);
      if (kernel == nullptr) continue;
      absl::Status status = VerifyKernel(kernel->kernel);
      EXPECT_TRUE(status.ok()) << status << "\n" << kernel->kernel.DebugString();
    }
    return *std::move(schedule);
  }

 private:
  uint32_t next_var_ = 0;
};

// A step that is a kernel; another throws.
inline const ScheduledKernel& KernelAt(const Schedule& schedule, size_t step) {
  return std::get<ScheduledKernel>(schedule.steps.at(step));
}

}  // namespace kiln::testing
