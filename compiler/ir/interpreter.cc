#include "compiler/ir/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/ops.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

using ExprList = std::vector<uint32_t>;  // ascending, so arguments before users

struct Expr {
  v1::ExprOp op;
  int64_t value;
  absl::InlinedVector<uint32_t, 2> args;
  int level = 0;         // after how many loop variables it is known
  bool dynamic = false;  // reads the value of an op
};

struct Instruction {
  LoopOpcode op;
  LoopOpClass op_class;
  v1::DType dtype, from;  // of the result; of the first argument
  uint32_t id;
  int arg_count;
  uint32_t args[3];
  uint32_t buffer, index, mode;
  ExprList dynamic;  // what to evaluate just before: the parts of `index` that read ops
};

struct StageCode {
  std::vector<uint32_t> inner;    // extents
  std::vector<Instruction> code;  // without constants
  std::vector<ExprList> exprs;    // by inner loop: what its variable completes
  std::vector<const Instruction*> reduces, scans;
};

// The running value of a reduction or scan.
struct Accumulator {
  long double sum = 0;
  Scalar value{};
  int64_t position = 0;
  bool any = false;
};

bool IsNan(v1::DType dtype, Scalar x) {
  return (dtype == v1::F32 && std::isnan(x.f)) || (dtype == v1::F64 && std::isnan(x.d));
}

bool Less(v1::DType dtype, Scalar a, Scalar b) {
  if (dtype == v1::F32) return a.f < b.f;
  if (dtype == v1::F64) return a.d < b.d;
  return a.i < b.i;
}

// Of an empty domain.
Scalar Extreme(v1::DType dtype, bool lowest) {
  Scalar value;
  value.i = 0;
  if (dtype == v1::F32) {
    value.f = lowest ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  } else if (dtype == v1::F64) {
    value.d = lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  } else {
    const auto top = static_cast<int64_t>(IntegersEnd(dtype) - 1);
    value.i = !lowest ? top : ir::IsUnsigned(dtype) ? 0 : -top - 1;
  }
  return value;
}

// F32 and F64 sums and products are kept in long double, integers wrap.
void Accumulate(uint32_t kind, v1::DType dtype, Scalar x, int64_t position, Accumulator* acc) {
  switch (kind) {
    case v1::REDUCE_SUM:
    case v1::REDUCE_PROD:
      if (ir::IsFloating(dtype)) {
        long double value = dtype == v1::F32 ? static_cast<long double>(x.f) : static_cast<long double>(x.d);
        if (!acc->any) {
          acc->sum = value;
        } else if (kind == v1::REDUCE_SUM) {
          acc->sum += value;
        } else {
          acc->sum *= value;
        }
      } else if (!acc->any) {
        acc->value = x;
      } else {
        Scalar both[2] = {acc->value, x};
        ApplyScalarOp(kind == v1::REDUCE_SUM ? LoopOpcode::kAdd : LoopOpcode::kMul, dtype, both, &acc->value);
      }
      break;
    case v1::REDUCE_MAX:
    case v1::REDUCE_MIN:
    case v1::REDUCE_ARGMAX:
    case v1::REDUCE_ARGMIN: {
      bool max = kind == v1::REDUCE_MAX || kind == v1::REDUCE_ARGMAX;
      bool better =
          !acc->any || (!IsNan(dtype, acc->value) &&
                        (IsNan(dtype, x) || (max ? Less(dtype, acc->value, x) : Less(dtype, x, acc->value))));
      if (better) {
        acc->value = x;
        acc->position = position;
      }
      break;
    }
    case v1::REDUCE_ANY: acc->value.i = (acc->any ? acc->value.i : 0) | x.i; break;
    default: acc->value.i = (acc->any ? acc->value.i : 1) & x.i; break;
  }
  acc->any = true;
}

Scalar Result(uint32_t kind, v1::DType dtype, const Accumulator& acc) {
  Scalar value = acc.value;
  switch (kind) {
    case v1::REDUCE_SUM:
    case v1::REDUCE_PROD: {
      long double start = kind == v1::REDUCE_SUM ? 0 : 1;
      long double sum = acc.any ? acc.sum : start;
      if (dtype == v1::F32) {
        value.i = 0;
        value.f = static_cast<float>(sum);
      } else if (dtype == v1::F64) {
        value.d = static_cast<double>(sum);
      } else if (!acc.any) {
        value.i = kind == v1::REDUCE_SUM ? 0 : 1;
      }
      return value;
    }
    case v1::REDUCE_MAX: return acc.any ? value : Extreme(dtype, /*lowest=*/true);
    case v1::REDUCE_MIN: return acc.any ? value : Extreme(dtype, /*lowest=*/false);
    case v1::REDUCE_ARGMAX:
    case v1::REDUCE_ARGMIN: value.i = acc.position; return value;
    case v1::REDUCE_ANY: value.i = acc.any ? value.i : 0; return value;
    default: value.i = acc.any ? value.i : 1; return value;
  }
}

struct Code {
  std::vector<Expr> exprs;
  std::vector<v1::KernelBuffer> buffers;
  std::vector<uint32_t> outer;
  std::vector<StageCode> stages;
  std::vector<ExprList> outer_exprs;  // by level 0 … |outer|
  std::vector<std::pair<uint32_t, Scalar>> constants;
  uint32_t ops = 0;
  v1::KernelSchedule schedule;
};

// One call. `Run…` return false when the call is over early: `code` or `error` says why.
class Frame {
 public:
  Frame(const Code& code, const KilnArgs* args, const int64_t* symbols)
      : code_(code),
        args_(args),
        symbols_(symbols),
        exprs_(code.exprs.size()),
        values_(code.ops),
        accumulators_(code.ops) {
    for (const auto& [op, value] : code.constants) values_[op] = value;
    Evaluate(code_.outer_exprs[0]);
  }

  absl::StatusOr<int64_t> Size(uint32_t expr) {
    if (!exprs_[expr]) return absl::InternalError("kernel: a size has no value");
    return std::max<int64_t>(*exprs_[expr], 0);
  }

  absl::StatusOr<int64_t> Units() {
    const v1::KernelSchedule& schedule = code_.schedule;
    int64_t units = 1;
    for (uint32_t d = 0; d < schedule.parallel_dims(); ++d) {
      KILN_ASSIGN_OR_RETURN(int64_t extent, Size(code_.outer[d]));
      if (d + 1 == schedule.parallel_dims())
        extent = extent / schedule.chunk() + (extent % schedule.chunk() != 0);
      if (__builtin_mul_overflow(units, extent, &units)) return absl::InternalError("kernel: too many units");
    }
    return units;
  }

  absl::StatusOr<int32_t> Run(int64_t begin, int64_t end) {
    extents_.clear();
    for (uint32_t extent : code_.outer) {
      KILN_ASSIGN_OR_RETURN(int64_t size, Size(extent));
      extents_.push_back(size);
    }
    spans_.clear();
    for (const v1::KernelBuffer& buffer : code_.buffers) {
      KILN_ASSIGN_OR_RETURN(int64_t span, Size(buffer.span()));
      spans_.push_back(span);
    }
    for (int64_t unit = begin; unit < end; ++unit) {
      if (!RunUnit(unit)) break;
    }
    KILN_RETURN_IF_ERROR(error_);
    return status_code_;
  }

 private:
  bool RunUnit(int64_t unit) {
    int parallel = static_cast<int>(code_.schedule.parallel_dims());
    lo_.assign(extents_.size(), 0);
    hi_ = extents_;
    for (int d = parallel - 1; d >= 0; --d) {
      int64_t chunk = d == parallel - 1 ? code_.schedule.chunk() : 1;
      int64_t count = extents_[d] / chunk + (extents_[d] % chunk != 0);
      if (count == 0) return true;
      lo_[d] = unit % count * chunk;
      hi_[d] = std::min(lo_[d] + chunk, extents_[d]);
      unit /= count;
    }
    return RunOuter(0);
  }

  bool RunOuter(size_t loop) {
    if (loop == extents_.size()) {
      for (const StageCode& stage : code_.stages) {
        if (!RunStage(stage)) return false;
      }
      return true;
    }
    for (int64_t i = lo_[loop]; i < hi_[loop]; ++i) {
      variables_[loop] = i;
      Evaluate(code_.outer_exprs[loop + 1]);
      if (!RunOuter(loop + 1)) return false;
    }
    return true;
  }

  bool RunStage(const StageCode& stage) {
    for (const Instruction* reduce : stage.reduces) accumulators_[reduce->id] = Accumulator();
    position_ = 0;
    if (!RunInner(stage, 0)) return false;
    for (const Instruction* reduce : stage.reduces) {
      values_[reduce->id] = Result(reduce->mode, reduce->from, accumulators_[reduce->id]);
    }
    return true;
  }

  bool RunInner(const StageCode& stage, size_t loop) {
    if (loop == stage.inner.size()) {
      for (const Instruction& instruction : stage.code) {
        if (!Execute(instruction)) return false;
      }
      ++position_;
      return true;
    }
    absl::StatusOr<int64_t> extent = Size(stage.inner[loop]);
    if (!extent.ok()) return Broken(extent.status().message());
    if (loop + 1 == stage.inner.size()) {
      for (const Instruction* scan : stage.scans) accumulators_[scan->id] = Accumulator();
    }
    for (int64_t i = 0; i < *extent; ++i) {
      variables_[code_.outer.size() + loop] = i;
      Evaluate(stage.exprs[loop]);
      if (!RunInner(stage, loop + 1)) return false;
    }
    return true;
  }

  void Evaluate(const ExprList& list) {
    for (uint32_t id : list) {
      const Expr& expr = code_.exprs[id];
      switch (expr.op) {
        case v1::EXPR_CONST: exprs_[id] = expr.value; break;
        case v1::EXPR_SYMBOL: exprs_[id] = symbols_[expr.value]; break;
        case v1::EXPR_VAR: exprs_[id] = variables_[expr.value]; break;
        case v1::EXPR_INDIRECT: exprs_[id] = values_[expr.value].i; break;
        default: {
          absl::InlinedVector<ExprValue, 4> args;
          for (uint32_t arg : expr.args) args.push_back(exprs_[arg]);
          exprs_[id] = ApplyExprOp(expr.op, args);
        }
      }
    }
  }

  bool Broken(absl::string_view what) {
    error_ = absl::InternalError(what);
    return false;
  }

  bool Fail(const Instruction& op, int32_t code, int64_t value, int64_t bound) {
    status_code_ = code;
    int32_t expected = KILN_OK;
    KilnStatus* status = args_->status;
    if (status != nullptr && __atomic_compare_exchange_n(&status->code, &expected, code, false,
                                                         __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
      status->op = static_cast<int32_t>(op.id);
      status->value = value;
      status->bound = bound;
    }
    return false;
  }

  // Where a load or store goes; nullopt when it is broken.
  std::optional<int64_t> Address(const Instruction& op) {
    Evaluate(op.dynamic);
    ExprValue index = exprs_[op.index];
    if (!index || *index < 0 || *index >= spans_[op.buffer]) {
      Broken(absl::StrCat("kernel: op ", op.id, " reaches element ", index.value_or(INT64_MIN), " of buffer ",
                          op.buffer, ", which has ", spans_[op.buffer]));
      return std::nullopt;
    }
    return index;
  }

  bool Execute(const Instruction& op) {
    Scalar& result = values_[op.id];
    switch (op.op_class) {
      case LoopOpClass::kLeaf: {
        Evaluate(op.dynamic);
        if (!exprs_[op.index]) return Broken(absl::StrCat("kernel: index of op ", op.id, " has no value"));
        result.i = *exprs_[op.index];
        return true;
      }
      case LoopOpClass::kMemory: return ExecuteMemory(op);
      case LoopOpClass::kConvert:
        result = op.op == LoopOpcode::kCast ? CastScalar(op.from, op.dtype, values_[op.args[0]])
                                            : BitcastScalar(op.from, op.dtype, values_[op.args[0]]);
        return true;
      case LoopOpClass::kSelect:
        result = values_[op.args[0]].i != 0 ? values_[op.args[1]] : values_[op.args[2]];
        return true;
      case LoopOpClass::kReduce: {
        Accumulator& accumulator = accumulators_[op.id];
        Accumulate(op.mode, op.from, values_[op.args[0]], position_, &accumulator);
        if (op.op == LoopOpcode::kScan) result = Result(op.mode, op.from, accumulator);
        return true;
      }
      case LoopOpClass::kRandom:
        result.i = RandomBits(values_[op.args[0]].i, values_[op.args[1]].i, values_[op.args[2]].i);
        return true;
      default: {
        Scalar args[3] = {};
        for (int i = 0; i < op.arg_count; ++i) args[i] = values_[op.args[i]];
        if (ApplyScalarOp(op.op, op.from, args, &result)) return true;
        return Fail(op, KILN_INTEGER_DIVISION_BY_ZERO, args[0].i, 0);
      }
    }
  }

  bool ExecuteMemory(const Instruction& op) {
    Scalar& result = values_[op.id];
    int values = op.op == LoopOpcode::kLoad ? 0 : 1;
    bool masked_out = op.arg_count > values && values_[op.args[values]].i == 0;
    if (masked_out) {
      result.i = 0;
      return true;
    }
    if (op.op == LoopOpcode::kCheckIndex) {
      Evaluate(op.dynamic);
      if (!exprs_[op.index]) return Broken(absl::StrCat("kernel: size of op ", op.id, " has no value"));
      int64_t size = *exprs_[op.index], index = values_[op.args[0]].i;
      result.i = index < 0 && op.mode == v1::INDEX_FROM_EITHER_END ? index + size : index;
      if (result.i >= 0 && result.i < size) return true;
      return Fail(op, KILN_INDEX_OUT_OF_RANGE, index, size);
    }
    std::optional<int64_t> at = Address(op);
    if (!at) return false;
    void* base = args_->buffers[op.buffer];
    if (op.op == LoopOpcode::kLoad) {
      result.i = 0;
      result = LoadScalar(op.dtype, base, *at);
      return true;
    }
    Scalar value = values_[op.args[0]];
    if (op.mode == v1::STORE_ACCUMULATE) value = AddScalars(op.dtype, LoadScalar(op.dtype, base, *at), value);
    StoreScalar(op.dtype, base, *at, value);
    return true;
  }

  const Code& code_;
  const KilnArgs* args_;
  const int64_t* symbols_;
  std::vector<ExprValue> exprs_;
  std::vector<Scalar> values_;
  std::vector<Accumulator> accumulators_;
  std::vector<int64_t> extents_, spans_, lo_, hi_;
  int64_t variables_[64] = {};  // more than kKernelLoopsMax
  int64_t position_ = 0;        // in the inner domain of the running stage
  int32_t status_code_ = KILN_OK;
  absl::Status error_;
};

class Interpreter : public KernelInterpreter {
 public:
  explicit Interpreter(const v1::Kernel& kernel) {
    code_.outer.assign(kernel.outer().begin(), kernel.outer().end());
    code_.buffers.assign(kernel.buffers().begin(), kernel.buffers().end());
    code_.schedule = kernel.schedule();
    ResolveExprs(kernel);
    std::vector<v1::DType> dtypes;
    code_.stages.reserve(kernel.stages_size());  // its instructions are pointed at
    for (const v1::Stage& stage : kernel.stages()) {
      code_.stages.emplace_back();
      ResolveStage(stage, &dtypes, &code_.stages.back());
    }
    code_.ops = static_cast<uint32_t>(dtypes.size());
  }

  absl::StatusOr<int32_t> Run(const KilnArgs& args, int64_t begin, int64_t end,
                              uint32_t thread) const override {
    return Frame(code_, &args, args.symbols).Run(begin, end);
  }

  absl::StatusOr<int64_t> Units(const int64_t* symbols) const override {
    return Frame(code_, nullptr, symbols).Units();
  }

 private:
  // Expressions that need outer variables at most are evaluated once an outer iteration, whichever
  // stage uses them.
  void ResolveExprs(const v1::Kernel& kernel) {
    code_.outer_exprs.resize(code_.outer.size() + 1);
    for (int i = 0; i < kernel.exprs_size(); ++i) {
      const v1::ExprNode& node = kernel.exprs(i);
      Expr expr{node.op(), node.value(), {node.args().begin(), node.args().end()}};
      if (node.op() == v1::EXPR_VAR) expr.level = static_cast<int>(node.value()) + 1;
      if (node.op() == v1::EXPR_INDIRECT) expr.dynamic = true;
      for (uint32_t arg : expr.args) {
        expr.level = std::max(expr.level, code_.exprs[arg].level);
        expr.dynamic = expr.dynamic || code_.exprs[arg].dynamic;
      }
      if (!expr.dynamic && expr.level <= static_cast<int>(code_.outer.size())) {
        code_.outer_exprs[expr.level].push_back(static_cast<uint32_t>(i));
      }
      code_.exprs.push_back(std::move(expr));
    }
  }

  ExprList Closure(uint32_t root) const {
    ExprList found, stack = {root};
    while (!stack.empty()) {
      uint32_t at = stack.back();
      stack.pop_back();
      if (std::find(found.begin(), found.end(), at) != found.end()) continue;
      found.push_back(at);
      for (uint32_t arg : code_.exprs[at].args) stack.push_back(arg);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  void ResolveStage(const v1::Stage& from, std::vector<v1::DType>* dtypes, StageCode* to) {
    to->inner.assign(from.inner().begin(), from.inner().end());
    to->exprs.resize(to->inner.size());
    std::vector<bool> listed(code_.exprs.size());
    for (const v1::LoopOp& op : from.ops()) {
      uint32_t id = static_cast<uint32_t>(dtypes->size());
      dtypes->push_back(op.dtype());
      const LoopOpInfo& info = *FindLoopOp(op.op());
      if (info.op == LoopOpcode::kConstant) {
        code_.constants.emplace_back(id, ConstantScalar(op.dtype(), op.bits()));
        continue;
      }
      Instruction instruction{info.op, info.op_class, op.dtype(), op.dtype(), id, op.args_size(),
                              {},      op.buffer(),   op.index(), op.mode(),  {}};
      for (int i = 0; i < op.args_size(); ++i) instruction.args[i] = op.args(i);
      if (op.args_size() > 0) instruction.from = (*dtypes)[op.args(0)];
      if (info.op == LoopOpcode::kIndexExpr || info.op_class == LoopOpClass::kMemory) {
        for (uint32_t expr : Closure(op.index())) {
          int level = code_.exprs[expr].level - static_cast<int>(code_.outer.size());
          if (code_.exprs[expr].dynamic) {
            instruction.dynamic.push_back(expr);
          } else if (level > 0 && !listed[expr]) {
            listed[expr] = true;
            to->exprs[level - 1].push_back(expr);
          }
        }
      }
      to->code.push_back(std::move(instruction));
    }
    for (ExprList& list : to->exprs) std::sort(list.begin(), list.end());
    for (const Instruction& instruction : to->code) {
      if (instruction.op == LoopOpcode::kReduce) to->reduces.push_back(&instruction);
      if (instruction.op == LoopOpcode::kScan) to->scans.push_back(&instruction);
    }
  }

  Code code_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<KernelInterpreter>> KernelInterpreter::Create(const v1::Kernel& kernel) {
  KILN_RETURN_IF_ERROR(VerifyKernel(kernel));
  return std::make_unique<Interpreter>(kernel);
}

}  // namespace kiln
