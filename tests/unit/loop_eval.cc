#include "tests/unit/loop_eval.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "compiler/support/kernel_abi.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

struct Scalar {
  double f = 0;
  int64_t i = 0;
};

int64_t Wrap(int64_t value, v1::DType dtype) {
  switch (dtype) {
    case v1::BOOL:
      return value != 0;
    case v1::U8:
      return static_cast<uint8_t>(value);
    case v1::I8:
      return static_cast<int8_t>(value);
    case v1::I16:
      return static_cast<int16_t>(value);
    case v1::I32:
      return static_cast<int32_t>(value);
    default:
      return value;
  }
}

float Bf16ToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t FloatToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double RoundTo(double value, v1::DType dtype) {
  if (dtype == v1::F32) return static_cast<float>(value);
  if (dtype == v1::F16) return static_cast<double>(static_cast<_Float16>(value));
  if (dtype == v1::BF16) return Bf16ToFloat(FloatToBf16(static_cast<float>(value)));
  return value;
}

Scalar ReadElement(const BufferBytes& bytes, v1::DType dtype, int64_t index) {
  const char* at = bytes.data() + index * ByteSize(dtype);
  auto get = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (dtype) {
    case v1::F32:
      return {get(float{}), 0};
    case v1::F64:
      return {get(double{}), 0};
    case v1::F16:
      return {static_cast<double>(get(_Float16{})), 0};
    case v1::BF16:
      return {Bf16ToFloat(get(uint16_t{})), 0};
    case v1::BOOL:
    case v1::U8:
      return {0, get(uint8_t{})};
    case v1::I8:
      return {0, get(int8_t{})};
    case v1::I16:
      return {0, get(int16_t{})};
    case v1::I32:
      return {0, get(int32_t{})};
    default:
      return {0, get(int64_t{})};
  }
}

void WriteElement(BufferBytes& bytes, v1::DType dtype, int64_t index, Scalar value) {
  char* at = bytes.data() + index * ByteSize(dtype);
  auto put = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (dtype) {
    case v1::F32:
      return put(static_cast<float>(value.f));
    case v1::F64:
      return put(value.f);
    case v1::F16:
      return put(static_cast<_Float16>(value.f));
    case v1::BF16:
      return put(FloatToBf16(static_cast<float>(value.f)));
    case v1::BOOL:
    case v1::U8:
    case v1::I8:
      return put(static_cast<int8_t>(value.i));
    case v1::I16:
      return put(static_cast<int16_t>(value.i));
    case v1::I32:
      return put(static_cast<int32_t>(value.i));
    default:
      return put(value.i);
  }
}

int64_t ToInt(double value) {
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) return INT64_MIN;
  return static_cast<int64_t>(value);
}

// Philox4x32-10: the lane of `flat` of the block with counter (flat >> 2, number) and key seed.
int64_t Philox(uint64_t seed, uint64_t flat, uint64_t number) {
  uint32_t counter[4] = {static_cast<uint32_t>(flat >> 2), static_cast<uint32_t>(flat >> 34),
                         static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter[flat & 3];
}

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
        WriteElement(memory_[node.seeds.buffer], v1::I64, 0, {0, seed});
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
      WriteElement(memory_[call.results[0]], v1::F32, at, {sum, 0});
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
        for (ExprId leaf : graph_.exprs.Leaves(op.index)) {
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

  void StartReduce(const LoopBody& body, LoopOpId id) {
    const LoopOpData& op = body.op(id);
    const v1::DType dtype = body.op(op.args[0]).dtype;
    Scalar& value = values_[id];
    value = {};
    best_[id] = {std::numeric_limits<double>::quiet_NaN(), -1};
    switch (op.mode) {
      case v1::REDUCE_PROD:
      case v1::REDUCE_ALL:
        value = {1, 1};
        break;
      case v1::REDUCE_MAX:
        value = {-HUGE_VAL, dtype == v1::U8 || dtype == v1::BOOL ? 0 : INT64_MIN};
        break;
      case v1::REDUCE_MIN:
        value = {HUGE_VAL, INT64_MAX};
        break;
      default:
        break;
    }
  }

  void Accumulate(const LoopBody& body, LoopOpId id, int64_t position) {
    const LoopOpData& op = body.op(id);
    const v1::DType dtype = body.op(op.args[0]).dtype;
    const bool real = IsFloat(dtype);
    const Scalar x = values_[op.args[0]];
    Scalar& value = values_[id];
    switch (op.mode) {
      case v1::REDUCE_SUM:
        value.f += x.f;
        value.i += x.i;
        break;
      case v1::REDUCE_PROD:
        value.f *= x.f;
        value.i *= x.i;
        break;
      case v1::REDUCE_MAX:
      case v1::REDUCE_MIN: {
        const bool max = op.mode == v1::REDUCE_MAX;
        if (real) {
          if (std::isnan(value.f) || std::isnan(x.f)) {
            value.f = std::numeric_limits<double>::quiet_NaN();
          } else {
            value.f = max ? std::max(value.f, x.f) : std::min(value.f, x.f);
          }
        }
        value.i = max ? std::max(value.i, x.i) : std::min(value.i, x.i);
        break;
      }
      case v1::REDUCE_ANY:
        value.i |= x.i;
        break;
      case v1::REDUCE_ALL:
        value.i &= x.i;
        break;
      default: {
        const bool max = op.mode == v1::REDUCE_ARGMAX;
        auto& [best, at] = best_[id];
        const double key = real ? x.f : static_cast<double>(x.i);
        const bool better =
            at < 0 || (!std::isnan(best) && (std::isnan(key) || (max ? key > best : key < best)));
        if (better) {
          best = key;
          at = position;
        }
        value.i = at;
      }
    }
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
      case LoopOpcode::kConstant:
        value.i = static_cast<int64_t>(op.bits);
        if (IsFloat(op.dtype)) std::memcpy(&value.f, &op.bits, 8);
        return;
      case LoopOpcode::kIndexExpr:
        value.i = Value(op.index);
        return;
      case LoopOpcode::kLoad: {
        value = {};
        if (Masked(op, 0)) return;
        if (graph_.buffers[op.buffer].dtype != op.dtype)
          status_ = absl::InternalError("a load of another type");
        const int64_t at = Address(op);
        if (at >= 0) value = ReadElement(memory_[op.buffer], op.dtype, at);
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
          const Scalar old = ReadElement(memory_[op.buffer], op.dtype, at);
          stored.f += old.f;
          stored.i += old.i;
        }
        WriteElement(memory_[op.buffer], op.dtype, at, stored);
        return;
      }
      case LoopOpcode::kCheckIndex: {
        value = {};
        if (Masked(op, 1)) return;
        const int64_t size = Value(op.index);
        value.i = values_[op.args[0]].i;
        if (value.i < 0) value.i += size;
        if (value.i >= 0 && value.i < size) return;
        if (status_code_ == 0) status_code_ = KILN_INDEX_OUT_OF_RANGE;
        value.i = 0;
        return;
      }
      case LoopOpcode::kReduce:
        Accumulate(body, id, position);
        return;
      case LoopOpcode::kScan: {
        const Scalar x = values_[op.args[0]];
        const bool product = op.mode == v1::REDUCE_PROD;
        value.f = RoundTo(!started_ ? x.f : product ? value.f * x.f : value.f + x.f, op.dtype);
        value.i = !started_ ? x.i : product ? value.i * x.i : value.i + x.i;
        return;
      }
      case LoopOpcode::kRandBits:
        value.i = Philox(values_[op.args[0]].i, values_[op.args[1]].i, values_[op.args[2]].i);
        return;
      default:
        RunValueOp(body, op, value);
    }
  }

  void RunValueOp(const LoopBody& body, const LoopOpData& op, Scalar& value) {
    const v1::DType from = body.op(op.args[0]).dtype;
    const bool real = IsFloat(from);
    const Scalar a = values_[op.args[0]];
    const Scalar b = op.args.size() > 1 ? values_[op.args[1]] : Scalar{};
    const Scalar c = op.args.size() > 2 ? values_[op.args[2]] : Scalar{};
    for (size_t i = op.op == LoopOpcode::kWhere ? 2 : 1; i < op.args.size(); ++i) {
      if (body.op(op.args[i]).dtype != body.op(op.args[op.op == LoopOpcode::kWhere]).dtype) {
        status_ = absl::InternalError("arguments of different types");
      }
    }
    value = {};
    if (op.op == LoopOpcode::kCast) {
      if (IsFloat(op.dtype)) {
        value.f = RoundTo(real ? a.f : static_cast<double>(a.i), op.dtype);
      } else if (op.dtype == v1::BOOL) {
        value.i = real ? a.f != 0 : a.i != 0;
      } else {
        value.i = Wrap(real ? ToInt(a.f) : a.i, op.dtype);
      }
      return;
    }
    if (op.op == LoopOpcode::kWhere) {
      value = a.i != 0 ? b : c;
      return;
    }
    if (real) {
      value = RealOp(op.op, a.f, b.f, c.f);
      value.f = RoundTo(value.f, op.dtype);
    } else {
      value = IntOp(op.op, a.i, b.i);
      value.i = Wrap(value.i, op.dtype);
    }
  }

  Scalar RealOp(LoopOpcode op, double a, double b, double c) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    switch (op) {
      case LoopOpcode::kAdd:
        return {a + b};
      case LoopOpcode::kSub:
        return {a - b};
      case LoopOpcode::kMul:
        return {a * b};
      case LoopOpcode::kDiv:
        return {a / b};
      case LoopOpcode::kFloorDiv:
        return {std::floor(a / b)};
      case LoopOpcode::kTruncDiv:
        return {std::trunc(a / b)};
      case LoopOpcode::kRemainder: {
        const double r = std::fmod(a, b);
        return {r != 0 && (r < 0) != (b < 0) ? r + b : r};
      }
      case LoopOpcode::kFmod:
        return {std::fmod(a, b)};
      case LoopOpcode::kNeg:
        return {-a};
      case LoopOpcode::kAbs:
        return {std::fabs(a)};
      case LoopOpcode::kSign:
        return {std::isnan(a) ? a : static_cast<double>((a > 0) - (a < 0))};
      case LoopOpcode::kMaximum:
        return {std::isnan(a) || std::isnan(b) ? nan : std::max(a, b)};
      case LoopOpcode::kMinimum:
        return {std::isnan(a) || std::isnan(b) ? nan : std::min(a, b)};
      case LoopOpcode::kFma:
        return {std::fma(a, b, c)};
      case LoopOpcode::kSqrt:
        return {std::sqrt(a)};
      case LoopOpcode::kRsqrt:
        return {1 / std::sqrt(a)};
      case LoopOpcode::kReciprocal:
        return {1 / a};
      case LoopOpcode::kExp:
        return {std::exp(a)};
      case LoopOpcode::kExp2:
        return {std::exp2(a)};
      case LoopOpcode::kExpm1:
        return {std::expm1(a)};
      case LoopOpcode::kLog:
        return {std::log(a)};
      case LoopOpcode::kLog2:
        return {std::log2(a)};
      case LoopOpcode::kLog10:
        return {std::log10(a)};
      case LoopOpcode::kLog1p:
        return {std::log1p(a)};
      case LoopOpcode::kSin:
        return {std::sin(a)};
      case LoopOpcode::kCos:
        return {std::cos(a)};
      case LoopOpcode::kTan:
        return {std::tan(a)};
      case LoopOpcode::kAsin:
        return {std::asin(a)};
      case LoopOpcode::kAcos:
        return {std::acos(a)};
      case LoopOpcode::kAtan:
        return {std::atan(a)};
      case LoopOpcode::kAtan2:
        return {std::atan2(a, b)};
      case LoopOpcode::kSinh:
        return {std::sinh(a)};
      case LoopOpcode::kCosh:
        return {std::cosh(a)};
      case LoopOpcode::kTanh:
        return {std::tanh(a)};
      case LoopOpcode::kAsinh:
        return {std::asinh(a)};
      case LoopOpcode::kAcosh:
        return {std::acosh(a)};
      case LoopOpcode::kAtanh:
        return {std::atanh(a)};
      case LoopOpcode::kErf:
        return {std::erf(a)};
      case LoopOpcode::kErfc:
        return {std::erfc(a)};
      case LoopOpcode::kSigmoid:
        return {1 / (1 + std::exp(-a))};
      case LoopOpcode::kPow:
        return {std::pow(a, b)};
      case LoopOpcode::kFloor:
        return {std::floor(a)};
      case LoopOpcode::kCeil:
        return {std::ceil(a)};
      case LoopOpcode::kTrunc:
        return {std::trunc(a)};
      case LoopOpcode::kRound:
        return {std::nearbyint(a)};
      case LoopOpcode::kLgamma:
        return {std::lgamma(a)};
      case LoopOpcode::kEq:
        return {0, a == b};
      case LoopOpcode::kNe:
        return {0, a != b};
      case LoopOpcode::kLt:
        return {0, a < b};
      case LoopOpcode::kLe:
        return {0, a <= b};
      case LoopOpcode::kGt:
        return {0, a > b};
      case LoopOpcode::kGe:
        return {0, a >= b};
      case LoopOpcode::kIsNan:
        return {0, std::isnan(a)};
      case LoopOpcode::kIsInf:
        return {0, std::isinf(a)};
      default:
        status_ = absl::InternalError(absl::StrCat(InfoOf(op).name, " of floats"));
        return {};
    }
  }

  Scalar IntOp(LoopOpcode op, int64_t a, int64_t b) {
    const bool divides = op == LoopOpcode::kFloorDiv || op == LoopOpcode::kTruncDiv ||
                         op == LoopOpcode::kRemainder || op == LoopOpcode::kFmod;
    if (divides && b == 0) {
      if (status_code_ == 0) status_code_ = KILN_INTEGER_DIVISION_BY_ZERO;
      return {};
    }
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    auto wrapped = [](uint64_t value) { return Scalar{0, static_cast<int64_t>(value)}; };
    switch (op) {
      case LoopOpcode::kAdd:
        return wrapped(x + y);
      case LoopOpcode::kSub:
        return wrapped(x - y);
      case LoopOpcode::kMul:
        return wrapped(x * y);
      case LoopOpcode::kFloorDiv:
        return {0, a / b - (a % b != 0 && (a < 0) != (b < 0))};
      case LoopOpcode::kTruncDiv:
        return {0, a / b};
      case LoopOpcode::kRemainder:
        return {0, a % b != 0 && (a % b < 0) != (b < 0) ? a % b + b : a % b};
      case LoopOpcode::kFmod:
        return {0, a % b};
      case LoopOpcode::kNeg:
        return wrapped(0 - x);
      case LoopOpcode::kAbs:
        return wrapped(a < 0 ? 0 - x : x);
      case LoopOpcode::kSign:
        return {0, (a > 0) - (a < 0)};
      case LoopOpcode::kMaximum:
        return {0, std::max(a, b)};
      case LoopOpcode::kMinimum:
        return {0, std::min(a, b)};
      case LoopOpcode::kPow: {
        if (b < 0) return {0, a == 1 ? 1 : a == -1 ? (b % 2 != 0 ? -1 : 1) : 0};
        uint64_t power = 1;
        for (int64_t i = 0; i < b; ++i) power *= x;
        return wrapped(power);
      }
      case LoopOpcode::kEq:
        return {0, a == b};
      case LoopOpcode::kNe:
        return {0, a != b};
      case LoopOpcode::kLt:
        return {0, a < b};
      case LoopOpcode::kLe:
        return {0, a <= b};
      case LoopOpcode::kGt:
        return {0, a > b};
      case LoopOpcode::kGe:
        return {0, a >= b};
      case LoopOpcode::kLogicalAnd:
        return {0, a != 0 && b != 0};
      case LoopOpcode::kLogicalOr:
        return {0, a != 0 || b != 0};
      case LoopOpcode::kLogicalNot:
        return {0, a == 0};
      case LoopOpcode::kLogicalXor:
        return {0, (a != 0) != (b != 0)};
      case LoopOpcode::kBitAnd:
        return {0, a & b};
      case LoopOpcode::kBitOr:
        return {0, a | b};
      case LoopOpcode::kBitXor:
        return {0, a ^ b};
      case LoopOpcode::kBitNot:
        return {0, ~a};
      case LoopOpcode::kShiftLeft:
        return wrapped(b < 0 || b > 63 ? 0 : x << b);
      case LoopOpcode::kShiftRight:
        return {0, a >> (b < 0 || b > 63 ? 63 : b)};
      default:
        status_ = absl::InternalError(absl::StrCat(InfoOf(op).name, " of integers"));
        return {};
    }
  }

  const LoopGraph& graph_;
  const std::vector<int64_t>& symbols_;
  std::vector<BufferBytes> memory_;
  std::map<uint32_t, int64_t> vars_;
  std::vector<Scalar> values_;
  std::vector<Place> places_;
  std::map<LoopOpId, std::pair<double, int64_t>> best_;
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
