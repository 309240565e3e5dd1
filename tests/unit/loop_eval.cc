#include "tests/unit/loop_eval.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_leaves.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/support/kernel_abi.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

class Evaluator {
 public:
  Evaluator(const LoopGraph& graph, const std::vector<int64_t>& symbols) : graph_(graph), symbols_(symbols) {}

  absl::StatusOr<LoopEvalResult> Run(const std::vector<BufferBytes>& inputs, int64_t seed) {
    for (const LoopBuffer& buffer : graph_.buffers) {
      const int64_t bytes = std::max<int64_t>(Value(buffer.span), 0) * ByteSize(buffer.dtype);
      memory_.emplace_back(bytes, '\0');
      if (buffer.kind != LoopBuffer::Kind::kInput) continue;
      if (inputs.at(buffer.input).size() < memory_.back().size()) {
        return absl::InvalidArgumentError(absl::StrCat("input ", buffer.input, " is too small"));
      }
      memory_.back() = inputs[buffer.input];
    }
    for (const LoopGraphNode& node : graph_.nodes) {
      if (node.kind == LoopGraphNode::Kind::kLoops) KILN_RETURN_IF_ERROR(RunLoops(node.loops));
      if (node.kind == LoopGraphNode::Kind::kCall) KILN_RETURN_IF_ERROR(RunCall(node.call));
      if (node.kind == LoopGraphNode::Kind::kSeeds)
        StoreScalar(v1::I64, memory_[node.seeds.buffer].data(), 0, Scalar{.i = seed});
    }
    LoopEvalResult result;
    result.status_code = status_code_;
    result.inputs.resize(graph_.inputs.size());
    for (size_t i = 0; i < graph_.buffers.size(); ++i) {
      if (graph_.buffers[i].kind == LoopBuffer::Kind::kInput)
        result.inputs[graph_.buffers[i].input] = memory_[i];
    }
    for (const LoopGraphOutput& output : graph_.outputs) {
      result.outputs.emplace_back();
      result.sym_ints.push_back(output.kind == LoopGraphOutput::Kind::kSymInt ? Value(output.sym_int) : 0);
      if (output.kind == LoopGraphOutput::Kind::kView) {
        KILN_ASSIGN_OR_RETURN(result.outputs.back(), Gather(output.view));
      }
    }
    KILN_RETURN_IF_ERROR(status_);
    return result;
  }

 private:
  int64_t Value(ExprId expr) {
    auto value = graph_.exprs.Evaluate(expr, [&](const ExprNode& leaf) -> int64_t {
      if (leaf.op == v1::EXPR_SYMBOL) return symbols_.at(leaf.value);
      if (leaf.op == v1::EXPR_VAR) return vars_.at(static_cast<uint32_t>(leaf.value));
      return values_.at(leaf.value).i;
    });
    if (!value.ok() && status_.ok()) status_ = value.status();
    return value.ok() ? *value : 0;
  }

  absl::StatusOr<BufferBytes> Gather(const BufferView& view) {
    std::vector<int64_t> sizes, strides;
    int64_t count = 1;
    for (ExprId size : view.sizes) count *= sizes.emplace_back(Value(size));
    for (ExprId stride : view.strides) strides.push_back(Value(stride));
    const int64_t width = ByteSize(view.dtype), offset = Value(view.offset);
    BufferBytes out(count * width, '\0');
    for (int64_t flat = 0; flat < count; ++flat) {
      int64_t rest = flat, at = offset;
      for (size_t dim = sizes.size(); dim-- > 0; rest /= sizes[dim]) at += rest % sizes[dim] * strides[dim];
      if (at < 0 || (at + 1) * width > static_cast<int64_t>(memory_[view.buffer].size())) {
        return absl::InternalError("a view reaches past its buffer");
      }
      std::memcpy(out.data() + flat * width, memory_[view.buffer].data() + at * width, width);
    }
    return out;
  }

  // ---- library calls

  absl::StatusOr<std::vector<float>> Floats(const BufferView& view) {
    if (view.dtype != v1::F32) return absl::UnimplementedError("a call on another type than F32");
    KILN_ASSIGN_OR_RETURN(const BufferBytes bytes, Gather(view));
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  absl::Status RunCall(const CallNode& call) {
    const bool addmm = call.target == "aten.addmm.default";
    if (call.target != "aten.mm.default" && call.target != "aten.bmm.default" && !addmm) {
      return absl::UnimplementedError(absl::StrCat("a call of ", call.target));
    }
    const BufferView &a_view = call.tensors[addmm], &b_view = call.tensors[addmm + 1];
    KILN_ASSIGN_OR_RETURN(const std::vector<float> a, Floats(a_view));
    KILN_ASSIGN_OR_RETURN(const std::vector<float> b, Floats(b_view));
    std::vector<float> bias;
    if (addmm) {
      KILN_ASSIGN_OR_RETURN(bias, Floats(call.tensors[0]));
    }
    const size_t last = a_view.sizes.size() - 1;
    const int64_t batch = last == 2 ? Value(a_view.sizes[0]) : 1;
    const int64_t rows = Value(a_view.sizes[last - 1]), depth = Value(a_view.sizes[last]);
    const int64_t columns = Value(b_view.sizes[last]);
    const LoopBuffer& result = graph_.buffers[call.results[0]];
    for (int64_t n = 0; n < batch * rows * columns; ++n) {
      const int64_t column = n % columns, row = n / columns % rows, image = n / columns / rows;
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(a[(image * rows + row) * depth + k]) *
               b[(image * depth + k) * columns + column];
      }
      if (addmm) sum += bias[bias.size() == static_cast<size_t>(columns) ? column : n];
      const int64_t at = (last == 2 ? image * Value(result.strides[0]) : 0) +
                         row * Value(result.strides[last - 1]) + column * Value(result.strides[last]);
      StoreScalar(v1::F32, memory_[call.results[0]].data(), at, Scalar{.f = static_cast<float>(sum)});
    }
    return absl::OkStatus();
  }

  // ---- loops

  enum class Place { kBefore, kInner, kAfter };

  void PlaceOps(const LoopNode& node) {
    places_.assign(node.body.size(), Place::kBefore);
    for (LoopOpId id = 0; id < node.body.size(); ++id) {
      const LoopOpData& op = node.body.op(id);
      Place place = Place::kBefore;
      auto raise = [&](Place other) { place = std::max(place, other); };
      auto after = [&](LoopOpId arg) {
        raise(node.body.op(arg).op == LoopOpcode::kReduce ? Place::kAfter : places_[arg]);
      };
      for (LoopOpId arg : op.args) after(arg);
      const bool has_index = op.op == LoopOpcode::kLoad || op.op == LoopOpcode::kStore ||
                             op.op == LoopOpcode::kIndexExpr || op.op == LoopOpcode::kCheckIndex;
      if (has_index) {
        for (ExprId leaf : LeavesOf(graph_.exprs, op.index)) {
          const ExprNode& expr = graph_.exprs.node(leaf);
          if (expr.op == v1::EXPR_INDIRECT) after(static_cast<LoopOpId>(expr.value));
          for (const LoopVar& var : node.inner) {
            if (expr.op == v1::EXPR_VAR && static_cast<uint32_t>(expr.value) == var.var) raise(Place::kInner);
          }
        }
      }
      if (op.op == LoopOpcode::kReduce || op.op == LoopOpcode::kScan) raise(Place::kInner);
      places_[id] = place;
    }
  }

  template <typename Fn>
  void ForEach(const std::vector<LoopVar>& loops, Fn fn) {
    std::vector<int64_t> extents;
    int64_t count = 1;
    for (const LoopVar& loop : loops) count *= extents.emplace_back(Value(loop.extent));
    for (int64_t flat = 0; flat < count; ++flat) {
      int64_t rest = flat;
      for (size_t i = loops.size(); i-- > 0; rest /= extents[i]) vars_[loops[i].var] = rest % extents[i];
      fn(flat);
    }
  }

  absl::Status RunLoops(const LoopNode& node) {
    PlaceOps(node);
    values_.assign(node.body.size(), {});
    ForEach(node.outer, [&](int64_t) {
      for (LoopOpId id = 0; id < node.body.size(); ++id) {
        started_ = false;
        if (places_[id] == Place::kBefore) RunOp(node.body, id, 0);
      }
      for (LoopOpId id = 0; id < node.body.size(); ++id) {
        if (node.body.op(id).op == LoopOpcode::kReduce) StartReduce(node.body, id);
      }
      if (!node.inner.empty()) {
        ForEach(node.inner, [&](int64_t position) {
          for (LoopOpId id = 0; id < node.body.size(); ++id) {
            if (places_[id] == Place::kInner) RunOp(node.body, id, position);
          }
          started_ = true;
        });
      }
      for (LoopOpId id = 0; id < node.body.size(); ++id) {
        if (places_[id] == Place::kAfter) RunOp(node.body, id, 0);
      }
    });
    return status_;
  }

  // The first value starts a reduction; an empty one gives its identity (sums and products only).
  void StartReduce(const LoopBody& body, LoopOpId id) {
    const LoopOpData& op = body.op(id);
    const bool one = op.mode == v1::REDUCE_PROD || op.mode == v1::REDUCE_ALL;
    values_[id] = CastScalar(v1::I64, op.dtype, Scalar{.i = one ? 1 : 0});
    best_[id] = {};
  }

  static LoopOpcode StepOf(uint32_t kind) {
    switch (kind) {
      case v1::REDUCE_SUM: return LoopOpcode::kAdd;
      case v1::REDUCE_PROD: return LoopOpcode::kMul;
      case v1::REDUCE_MAX:
      case v1::REDUCE_ARGMAX: return LoopOpcode::kMaximum;
      case v1::REDUCE_MIN:
      case v1::REDUCE_ARGMIN: return LoopOpcode::kMinimum;
      case v1::REDUCE_ANY: return LoopOpcode::kLogicalOr;
      default: return LoopOpcode::kLogicalAnd;
    }
  }

  Scalar Step(uint32_t kind, v1::DType dtype, Scalar a, Scalar b) {
    const Scalar args[] = {a, b};
    Scalar result = {};
    ApplyScalarOp(StepOf(kind), dtype, args, &result);
    return result;
  }

  static bool SameValue(v1::DType dtype, Scalar a, Scalar b) {
    if (dtype == v1::F32) return a.f == b.f || (std::isnan(a.f) && std::isnan(b.f));
    if (dtype == v1::F64) return a.d == b.d || (std::isnan(a.d) && std::isnan(b.d));
    return a.i == b.i;
  }

  void Accumulate(const LoopBody& body, LoopOpId id, int64_t position) {
    const LoopOpData& op = body.op(id);
    const v1::DType dtype = body.op(op.args[0]).dtype;
    const Scalar x = values_[op.args[0]];
    if (op.mode != v1::REDUCE_ARGMAX && op.mode != v1::REDUCE_ARGMIN) {
      values_[id] = started_ ? Step(op.mode, dtype, values_[id], x) : x;
      return;
    }
    const Scalar best = started_ ? Step(op.mode, dtype, best_[id], x) : x;
    if (!started_ || !SameValue(dtype, best, best_[id])) values_[id].i = position;
    best_[id] = best;
  }

  bool Masked(const LoopOpData& op, size_t mask_arg) {
    return op.args.size() > mask_arg && values_[op.args[mask_arg]].i == 0;
  }

  int64_t Address(const LoopOpData& op) {
    const int64_t at = Value(op.index);
    const int64_t count = memory_[op.buffer].size() / ByteSize(op.dtype);
    if (at >= 0 && at < count) return at;
    if (status_.ok()) {
      status_ = absl::InternalError(absl::StrCat("b", op.buffer, "[", at, "] of ", count, " elements"));
    }
    return -1;
  }

  void RunOp(const LoopBody& body, LoopOpId id, int64_t position) {
    const LoopOpData& op = body.op(id);
    Scalar& value = values_[id];
    switch (op.op) {
      case LoopOpcode::kConstant: value = ConstantScalar(op.dtype, op.bits); return;
      case LoopOpcode::kIndexExpr: value.i = Value(op.index); return;
      case LoopOpcode::kLoad: {
        value = {};
        if (Masked(op, 0)) return;
        if (graph_.buffers[op.buffer].dtype != op.dtype)
          status_ = absl::InternalError("a load of another type");
        const int64_t at = Address(op);
        if (at >= 0) value = LoadScalar(op.dtype, memory_[op.buffer].data(), at);
        return;
      }
      case LoopOpcode::kStore: {
        if (Masked(op, 1)) return;
        if (graph_.buffers[op.buffer].dtype != op.dtype || body.op(op.args[0]).dtype != op.dtype) {
          status_ = absl::InternalError("a store of another type");
        }
        const int64_t at = Address(op);
        if (at < 0) return;
        Scalar stored = values_[op.args[0]];
        if (op.mode == v1::STORE_ACCUMULATE) {
          stored = AddScalars(op.dtype, LoadScalar(op.dtype, memory_[op.buffer].data(), at), stored);
        }
        StoreScalar(op.dtype, memory_[op.buffer].data(), at, stored);
        return;
      }
      case LoopOpcode::kCheckIndex: {
        value = {};
        if (Masked(op, 1)) return;
        const int64_t size = Value(op.index);
        value.i = values_[op.args[0]].i;
        if (value.i < 0 && op.mode == v1::INDEX_FROM_EITHER_END) value.i += size;
        if (value.i >= 0 && value.i < size) return;
        if (status_code_ == 0) status_code_ = KILN_INDEX_OUT_OF_RANGE;
        value.i = 0;
        return;
      }
      case LoopOpcode::kReduce: Accumulate(body, id, position); return;
      case LoopOpcode::kScan: {
        const Scalar x = values_[op.args[0]];
        value = started_ ? Step(op.mode, op.dtype, value, x) : x;
        return;
      }
      case LoopOpcode::kRandBits:
        value.i = RandomBits(values_[op.args[0]].i, values_[op.args[1]].i, values_[op.args[2]].i);
        return;
      default: RunValueOp(body, op, value);
    }
  }

  void RunValueOp(const LoopBody& body, const LoopOpData& op, Scalar& value) {
    const size_t first = op.op == LoopOpcode::kWhere ? 1 : 0;
    const v1::DType from = body.op(op.args[first]).dtype;
    Scalar args[3] = {};
    for (size_t i = 0; i < op.args.size(); ++i) {
      args[i] = values_[op.args[i]];
      if (i >= first && body.op(op.args[i]).dtype != from) Fail("operands of different types");
    }
    if (op.op == LoopOpcode::kCast) {
      value = CastScalar(from, op.dtype, args[0]);
    } else if (op.op == LoopOpcode::kBitcast) {
      value = BitcastScalar(from, op.dtype, args[0]);
    } else if (op.op == LoopOpcode::kWhere) {
      value = args[0].i != 0 ? args[1] : args[2];
    } else if (!ApplyScalarOp(op.op, from, args, &value)) {
      if (status_code_ == 0) status_code_ = KILN_INTEGER_DIVISION_BY_ZERO;
      value = {};
    }
  }

  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InternalError(what);
  }

  const LoopGraph& graph_;
  const std::vector<int64_t>& symbols_;
  std::vector<BufferBytes> memory_;
  std::map<uint32_t, int64_t> vars_;
  std::vector<Scalar> values_;
  std::vector<Place> places_;
  std::map<LoopOpId, Scalar> best_;
  bool started_ = false;
  int status_code_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<LoopEvalResult> EvalLoopGraph(const LoopGraph& graph, const std::vector<BufferBytes>& inputs,
                                             const std::vector<int64_t>& symbols, int64_t seed) {
  return Evaluator(graph, symbols).Run(inputs, seed);
}

}  // namespace kiln
