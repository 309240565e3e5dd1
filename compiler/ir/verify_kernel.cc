#include "compiler/ir/verify_kernel.h"

#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/ops.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/member_table.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

using ir::IsArithmetic;
using ir::IsFloating;
using ir::IsInt;
using ir::IsStorable;

absl::Status Wrong(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("kernel: ", what));
}

absl::Status AtMost(size_t limit, size_t count, absl::string_view what) {
  if (count <= limit) return absl::OkStatus();
  return Wrong(absl::StrCat(count, " ", what, ", limit ", limit));
}

// What an expression reads.
struct ExprUse {
  int64_t variables = 0;                       // one more than the highest loop variable
  absl::InlinedVector<uint32_t, 2> indirects;  // sorted
};

class Verifier {
 public:
  explicit Verifier(const v1::Kernel& kernel) : kernel_(kernel) {}

  absl::Status Run() {
    KILN_RETURN_IF_ERROR(CheckCounts());
    KILN_RETURN_IF_ERROR(CheckExprs());
    KILN_RETURN_IF_ERROR(CheckBuffers());
    KILN_RETURN_IF_ERROR(CheckSchedule());
    for (int s = 0; s < kernel_.stages_size(); ++s) {
      stage_ = s;
      for (const v1::LoopOp& op : kernel_.stages(s).ops()) {
        absl::Status status = CheckOp(op);
        if (!status.ok()) {
          const LoopOpInfo* info = FindLoopOp(op.op());
          return StatusWrap(status, absl::StrCat("kernel: op ", ops_.size(), info ? " (" : "",
                                                 info ? info->name : "", info ? ")" : ""));
        }
        ops_.push_back({&op, s});
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Op {
    const v1::LoopOp* op;
    int stage;
  };

  absl::Status CheckCounts() {
    if (kernel_.format_version() != kKernelFormatVersion) {
      return Wrong(absl::StrCat("format version ", kernel_.format_version(), ", this build knows ",
                                kKernelFormatVersion));
    }
    KILN_RETURN_IF_ERROR(AtMost(kGraphSymbolsMax, kernel_.symbol_count(), "symbols"));
    KILN_RETURN_IF_ERROR(AtMost(kKernelBuffersMax, kernel_.buffers_size(), "buffers"));
    if (kernel_.stages_size() == 0) return Wrong("no stage");
    KILN_RETURN_IF_ERROR(AtMost(kKernelStagesMax, kernel_.stages_size(), "stages"));
    KILN_RETURN_IF_ERROR(AtMost(kExprNodesMax, kernel_.exprs_size(), "expressions"));
    size_t loops = 0;
    for (const v1::Stage& stage : kernel_.stages()) {
      op_count_ += stage.ops_size();
      loops = std::max<size_t>(loops, stage.inner_size());
    }
    KILN_RETURN_IF_ERROR(AtMost(kKernelOpsMax, op_count_, "ops"));
    variables_ = loops + kernel_.outer_size();
    return AtMost(kKernelLoopsMax, variables_, "loops");
  }

  absl::Status CheckExprs() {
    uses_.resize(kernel_.exprs_size());
    for (int i = 0; i < kernel_.exprs_size(); ++i) {
      const v1::ExprNode& node = kernel_.exprs(i);
      auto wrong = [&](absl::string_view what) { return Wrong(absl::StrCat("expression ", i, " ", what)); };
      if (!ExprArityIsValid(node.op(), node.args_size()))
        return wrong("has a wrong operator or number of arguments");
      if (static_cast<size_t>(node.args_size()) > kExprArgsMax)
        return wrong(absl::StrCat("has ", node.args_size(), " arguments, limit ", kExprArgsMax));
      ExprUse& use = uses_[i];
      if (node.op() == v1::EXPR_SYMBOL && (node.value() < 0 || node.value() >= kernel_.symbol_count())) {
        return wrong("names a symbol that does not exist");
      }
      if (node.op() == v1::EXPR_VAR) {
        if (node.value() < 0 || node.value() >= static_cast<int64_t>(variables_)) {
          return wrong("names a loop that does not exist");
        }
        use.variables = node.value() + 1;
      }
      if (node.op() == v1::EXPR_INDIRECT) {
        if (node.value() < 0 || node.value() >= static_cast<int64_t>(op_count_)) {
          return wrong("names an op that does not exist");
        }
        use.indirects.push_back(static_cast<uint32_t>(node.value()));
      }
      for (uint32_t arg : node.args()) {
        if (arg >= static_cast<uint32_t>(i)) return wrong("uses an expression that is not before it");
        use.variables = std::max(use.variables, uses_[arg].variables);
        for (uint32_t indirect : uses_[arg].indirects) {
          auto at = std::lower_bound(use.indirects.begin(), use.indirects.end(), indirect);
          if (at == use.indirects.end() || *at != indirect) use.indirects.insert(at, indirect);
        }
      }
      if (use.indirects.size() > kKernelIndirectsMax)
        return wrong(absl::StrCat("reads ", use.indirects.size(), " ops, limit ", kKernelIndirectsMax));
    }
    for (uint32_t extent : kernel_.outer()) KILN_RETURN_IF_ERROR(CheckSize(extent, "outer extent"));
    for (const v1::Stage& stage : kernel_.stages()) {
      for (uint32_t extent : stage.inner()) KILN_RETURN_IF_ERROR(CheckSize(extent, "inner extent"));
    }
    return absl::OkStatus();
  }

  // A size depends on symbols only.
  absl::Status CheckSize(uint32_t expr, absl::string_view what) {
    if (expr >= uses_.size()) return Wrong(absl::StrCat(what, " does not exist"));
    if (uses_[expr].variables > 0 || !uses_[expr].indirects.empty()) {
      return Wrong(absl::StrCat(what, " depends on a loop or an op"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBuffers() {
    for (int i = 0; i < kernel_.buffers_size(); ++i) {
      const v1::KernelBuffer& buffer = kernel_.buffers(i);
      if (!IsStorable(buffer.dtype()))
        return Wrong(absl::StrCat("buffer ", i, " has a dtype that kernels do not know"));
      if (buffer.access() < v1::READ || buffer.access() > v1::READ_WRITE) {
        return Wrong(absl::StrCat("buffer ", i, " has no access"));
      }
      KILN_RETURN_IF_ERROR(CheckSize(buffer.span(), absl::StrCat("span of buffer ", i)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckSchedule() {
    const v1::KernelSchedule& schedule = kernel_.schedule();
    if (schedule.parallel_dims() > static_cast<uint32_t>(kernel_.outer_size()))
      return Wrong("more parallel loops than outer ones");
    if (schedule.parallel_dims() > 0 && schedule.chunk() == 0) return Wrong("chunk of 0");
    const uint32_t words = static_cast<uint32_t>(kernel_.buffers_size()) + kernel_.symbol_count();
    if (schedule.members() > MemberTable::MembersThatFit(words)) return Wrong("too many members");
    if (!v1::VectorDim_IsValid(schedule.vector_dim())) return Wrong("unknown vector dimension");
    if (schedule.vector_dim() == v1::VECTOR_OUTER_LAST && kernel_.outer_size() == 0) {
      return Wrong("vectors along an outer loop that does not exist");
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const v1::LoopOp& op) {
    const LoopOpInfo* info = FindLoopOp(op.op());
    if (info == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown operator ", op.op()));
    if (info->arity >= 0 && op.args_size() != info->arity) {
      return absl::InvalidArgumentError(
          absl::StrCat(op.args_size(), " arguments where ", info->arity, " are due"));
    }
    if (op.args_size() > 3) return absl::InvalidArgumentError("too many arguments");
    for (uint32_t arg : op.args()) KILN_RETURN_IF_ERROR(CheckUse(arg));
    return CheckTypes(*info, op);
  }

  // May the op being checked use op `arg`?
  absl::Status CheckUse(uint32_t arg) {
    if (arg >= ops_.size())
      return absl::InvalidArgumentError(absl::StrCat("uses op ", arg, ", which is not before it"));
    const Op& used = ops_[arg];
    auto opcode = static_cast<LoopOpcode>(used.op->op());
    if (opcode == LoopOpcode::kStore) return absl::InvalidArgumentError(absl::StrCat("uses store ", arg));
    bool reduce = opcode == LoopOpcode::kReduce;
    if (used.stage == stage_) {
      if (reduce)
        return absl::InvalidArgumentError(absl::StrCat("uses reduction ", arg, " of its own stage"));
      return absl::OkStatus();
    }
    if (reduce || kernel_.stages(used.stage).inner_size() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("uses op ", arg, ", which is inside the loops of an earlier stage"));
  }

  absl::Status CheckIndex(uint32_t expr) {
    if (expr >= uses_.size()) return absl::InvalidArgumentError("index does not exist");
    if (uses_[expr].variables > kernel_.outer_size() + kernel_.stages(stage_).inner_size()) {
      return absl::InvalidArgumentError("index uses a loop that its stage does not have");
    }
    for (uint32_t indirect : uses_[expr].indirects) {
      KILN_RETURN_IF_ERROR(CheckUse(indirect));
      if (DType(indirect) != v1::I64) return absl::InvalidArgumentError("index uses an op that is not i64");
    }
    return absl::OkStatus();
  }

  v1::DType DType(uint32_t op) const { return ops_[op].op->dtype(); }
  v1::DType Arg(const v1::LoopOp& op, int i) const { return DType(op.args(i)); }

  static absl::Status Expect(bool condition, absl::string_view what) {
    return condition ? absl::OkStatus() : absl::InvalidArgumentError(what);
  }

  // All arguments from `first` on have the result's dtype.
  absl::Status ExpectSame(const v1::LoopOp& op, int first = 0) {
    for (int i = first; i < op.args_size(); ++i) {
      if (Arg(op, i) != op.dtype()) return absl::InvalidArgumentError("dtypes differ");
    }
    return absl::OkStatus();
  }

  absl::Status CheckTypes(const LoopOpInfo& info, const v1::LoopOp& op) {
    switch (info.op_class) {
      case LoopOpClass::kLeaf:
        if (info.op == LoopOpcode::kConstant)
          return Expect(IsStorable(op.dtype()), "constant of an unknown dtype");
        KILN_RETURN_IF_ERROR(Expect(op.dtype() == v1::I64, "an index is i64"));
        return CheckIndex(op.index());
      case LoopOpClass::kMemory: return CheckMemory(info, op);
      case LoopOpClass::kConvert:
        if (info.op == LoopOpcode::kBitcast) {
          KILN_RETURN_IF_ERROR(Expect(op.dtype() != v1::BOOL && Arg(op, 0) != v1::BOOL &&
                                          ir::ByteWidth(op.dtype()) == ir::ByteWidth(Arg(op, 0)),
                                      "widths differ"));
        }
        return Expect(IsStorable(op.dtype()), "cast to an unknown dtype");
      case LoopOpClass::kFloat:
        KILN_RETURN_IF_ERROR(Expect(IsFloating(op.dtype()), "takes f32 or f64"));
        return ExpectSame(op);
      case LoopOpClass::kArith: {
        KILN_RETURN_IF_ERROR(
            Expect(IsArithmetic(op.dtype()), "arithmetic on a dtype that is for memory only"));
        bool on_bool = info.op == LoopOpcode::kAdd || info.op == LoopOpcode::kMul ||
                       info.op == LoopOpcode::kMaximum || info.op == LoopOpcode::kMinimum;
        KILN_RETURN_IF_ERROR(Expect(op.dtype() != v1::BOOL || on_bool, "is not defined on booleans"));
        return ExpectSame(op);
      }
      case LoopOpClass::kInteger: {
        bool shift = info.op == LoopOpcode::kShiftLeft || info.op == LoopOpcode::kShiftRight;
        KILN_RETURN_IF_ERROR(
            Expect(IsInt(op.dtype()) || (op.dtype() == v1::BOOL && !shift), "takes integers"));
        return ExpectSame(op);
      }
      case LoopOpClass::kCompare: {
        bool unary = info.op == LoopOpcode::kIsNan || info.op == LoopOpcode::kIsInf;
        KILN_RETURN_IF_ERROR(Expect(op.dtype() == v1::BOOL, "a comparison is bool"));
        if (unary) return Expect(IsFloating(Arg(op, 0)), "takes f32 or f64");
        return Expect(IsArithmetic(Arg(op, 0)) && Arg(op, 0) == Arg(op, 1), "dtypes differ");
      }
      case LoopOpClass::kLogical:
        KILN_RETURN_IF_ERROR(Expect(op.dtype() == v1::BOOL, "logic is bool"));
        return ExpectSame(op);
      case LoopOpClass::kSelect:
        KILN_RETURN_IF_ERROR(Expect(Arg(op, 0) == v1::BOOL, "a condition is bool"));
        KILN_RETURN_IF_ERROR(Expect(IsStorable(op.dtype()), "choice of an unknown dtype"));
        return ExpectSame(op, 1);
      case LoopOpClass::kReduce: return CheckReduce(info, op);
      case LoopOpClass::kRandom:
        KILN_RETURN_IF_ERROR(Expect(op.dtype() == v1::I64, "random bits are i64"));
        return ExpectSame(op);
    }
    return absl::InternalError("operator of no class");
  }

  absl::Status CheckMemory(const LoopOpInfo& info, const v1::LoopOp& op) {
    int values = info.op == LoopOpcode::kLoad ? 0 : 1;  // arguments before the mask
    KILN_RETURN_IF_ERROR(
        Expect(op.args_size() >= values && op.args_size() <= values + 1, "wrong number of arguments"));
    if (op.args_size() > values) KILN_RETURN_IF_ERROR(Expect(Arg(op, values) == v1::BOOL, "a mask is bool"));
    KILN_RETURN_IF_ERROR(CheckIndex(op.index()));
    if (info.op == LoopOpcode::kCheckIndex) {
      KILN_RETURN_IF_ERROR(Expect(op.mode() <= v1::INDEX_FROM_START, "unknown index mode"));
      return Expect(op.dtype() == v1::I64 && Arg(op, 0) == v1::I64, "an index is i64");
    }
    KILN_RETURN_IF_ERROR(
        Expect(op.buffer() < static_cast<uint32_t>(kernel_.buffers_size()), "buffer does not exist"));
    const v1::KernelBuffer& buffer = kernel_.buffers(static_cast<int>(op.buffer()));
    KILN_RETURN_IF_ERROR(Expect(op.dtype() == buffer.dtype(), "dtype is not the buffer's"));
    bool reads = buffer.access() != v1::WRITE, writes = buffer.access() != v1::READ;
    if (info.op == LoopOpcode::kLoad) return Expect(reads, "reads a buffer that is only written");
    KILN_RETURN_IF_ERROR(Expect(Arg(op, 0) == op.dtype(), "stored value has another dtype"));
    KILN_RETURN_IF_ERROR(Expect(op.mode() <= v1::STORE_ACCUMULATE, "unknown store mode"));
    KILN_RETURN_IF_ERROR(Expect(op.mode() == v1::STORE_PLAIN || op.dtype() != v1::BOOL,
                                "accumulates bool, which no atomic adds"));
    KILN_RETURN_IF_ERROR(Expect(writes, "writes a buffer that is only read"));
    return Expect(reads || op.mode() == v1::STORE_PLAIN, "accumulates into a buffer that is only written");
  }

  absl::Status CheckReduce(const LoopOpInfo& info, const v1::LoopOp& op) {
    v1::DType from = Arg(op, 0);
    KILN_RETURN_IF_ERROR(Expect(IsArithmetic(from), "reduces a dtype that is for memory only"));
    bool scan = info.op == LoopOpcode::kScan;
    if (scan)
      KILN_RETURN_IF_ERROR(Expect(kernel_.stages(stage_).inner_size() > 0, "scan without an inner loop"));
    switch (op.mode()) {
      case v1::REDUCE_SUM:
      case v1::REDUCE_PROD:
      case v1::REDUCE_MAX:
      case v1::REDUCE_MIN: return ExpectSame(op);
      case v1::REDUCE_ANY:
      case v1::REDUCE_ALL:
        return Expect(!scan && op.dtype() == v1::BOOL && from == v1::BOOL, "any and all are bool");
      case v1::REDUCE_ARGMAX:
      case v1::REDUCE_ARGMIN: return Expect(!scan && op.dtype() == v1::I64, "a position is i64");
      default: return absl::InvalidArgumentError("unknown reduction");
    }
  }

  const v1::Kernel& kernel_;
  size_t op_count_ = 0, variables_ = 0;
  std::vector<ExprUse> uses_;  // by expression
  std::vector<Op> ops_;        // checked so far
  int stage_ = 0;
};

}  // namespace

absl::Status VerifyKernel(const v1::Kernel& kernel) { return Verifier(kernel).Run(); }

}  // namespace kiln
