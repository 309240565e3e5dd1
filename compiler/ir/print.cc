#include "compiler/ir/print.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/graph/expr_eval.h"
#include "compiler/graph/expr_print.h"
#include "compiler/graph/graph.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/ir/ops.h"

namespace kiln {
namespace {

const char* AccessName(v1::BufferAccess access) {
  switch (access) {
    case v1::READ: return "read";
    case v1::WRITE: return "write";
    case v1::READ_WRITE: return "read-write";
    default: return "?";
  }
}

const char* VectorName(v1::VectorDim dim) {
  switch (dim) {
    case v1::VECTOR_OUTER_LAST: return "vectors along the last outer loop";
    case v1::VECTOR_INNER_LAST: return "vectors along the last inner loop";
    default: return "scalar";
  }
}

std::string ReduceName(uint32_t mode) {
  if (!v1::ReduceKind_IsValid(static_cast<int>(mode))) return "?";
  std::string name = v1::ReduceKind_Name(static_cast<v1::ReduceKind>(mode)).substr(strlen("REDUCE_"));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

class Printer {
 public:
  Printer(const v1::Kernel& kernel, const v1::KernelNotes& notes) : kernel_(kernel), notes_(notes) {
    for (int i = 0; i < kernel.exprs_size(); ++i) exprs_.push_back(ExprText(kernel.exprs(i), i));
  }

  std::string Print() {
    absl::StrAppend(&text_, "kernel ", notes_.name().empty() ? "unnamed" : notes_.name(), ": ",
                    VectorName(kernel_.schedule().vector_dim()), MembersText(), "\n");
    const v1::KernelSchedule& schedule = kernel_.schedule();
    if (schedule.target_case() != v1::KernelSchedule::TARGET_NOT_SET)
      Line(1, absl::StrCat("schedule: ", ScheduleText(schedule)));
    if (notes_.operators_size() > 0)
      Line(1, absl::StrCat("# fused: ", absl::StrJoin(notes_.operators(), ", ")));
    for (const std::string& source : notes_.sources()) Line(1, absl::StrCat("# ", source));
    for (int i = 0; i < kernel_.buffers_size(); ++i) {
      const v1::KernelBuffer& buffer = kernel_.buffers(i);
      Line(1, absl::StrCat(BufferName(i), ": ", DTypeName(buffer.dtype()), "[", Expr(buffer.span()), "] ",
                           AccessName(buffer.access())));
    }
    int depth = 1;
    for (int d = 0; d < kernel_.outer_size(); ++d) Line(depth++, OuterLoop(d));
    uint32_t op = 0;
    for (int s = 0; s < kernel_.stages_size(); ++s) {
      const v1::Stage& stage = kernel_.stages(s);
      Line(depth, absl::StrCat("stage ", s, ":"));
      int inner_depth = depth + 1;
      for (int j = 0; j < stage.inner_size(); ++j) {
        Line(inner_depth++,
             absl::StrCat("for i", kernel_.outer_size() + j, " in 0..", Expr(stage.inner(j)), ":"));
      }
      for (const v1::LoopOp& loop_op : stage.ops()) Line(inner_depth, OpText(op++, loop_op));
    }
    return std::move(text_);
  }

 private:
  void Line(int depth, absl::string_view line) {
    absl::StrAppend(&text_, std::string(2 * static_cast<size_t>(depth), ' '), line, "\n");
  }

  PrintedExpr ExprText(const v1::ExprNode& node, int position) {
    std::vector<PrintedExpr> args;
    for (uint32_t arg : node.args()) {
      args.push_back(arg < static_cast<uint32_t>(position) ? exprs_[arg] : PrintedExpr());
    }
    if (!ExprArityIsValid(node.op(), args.size())) return {};
    return PrintExpr(node.op(), node.value(), args, {"i", "%"});
  }

  std::string Expr(uint32_t id) const { return id < exprs_.size() ? exprs_[id].text : "?"; }

  std::string BufferName(uint32_t buffer) const {
    if (buffer < static_cast<uint32_t>(notes_.buffer_names_size())) {
      const std::string& name = notes_.buffer_names(static_cast<int>(buffer));
      if (!name.empty()) return name;
    }
    return absl::StrCat("b", buffer);
  }

  std::string MembersText() const {
    if (kernel_.schedule().members() == 0) return "";
    return absl::StrCat(", up to ", kernel_.schedule().members(), " members a launch");
  }

  std::string OuterLoop(int d) const {
    const v1::KernelSchedule& schedule = kernel_.schedule();
    std::string loop = absl::StrCat("for i", d, " in 0..", Expr(kernel_.outer(d)));
    if (d < static_cast<int>(schedule.parallel_dims())) absl::StrAppend(&loop, " parallel");
    if (d + 1 == static_cast<int>(schedule.parallel_dims()) && schedule.chunk() > 1) {
      absl::StrAppend(&loop, " by ", schedule.chunk());
    }
    return loop + ":";
  }

  std::string Constant(const v1::LoopOp& op) const {
    if (!IsFloat(op.dtype())) return absl::StrCat(static_cast<int64_t>(op.bits()));
    double value;
    uint64_t bits = op.bits();
    std::memcpy(&value, &bits, sizeof(value));
    std::string text = absl::StrCat(value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }

  std::string OpText(uint32_t id, const v1::LoopOp& op) const {
    const LoopOpInfo* info = FindLoopOp(op.op());
    if (info == nullptr) return absl::StrCat("%", id, " = ? ", op.op());
    std::vector<std::string> args;
    for (uint32_t arg : op.args()) args.push_back(absl::StrCat("%", arg));
    std::string result = absl::StrCat("%", id, " = ", info->name, " ");
    std::string type = absl::StrCat(" : ", DTypeName(op.dtype()));
    switch (info->op) {
      case LoopOpcode::kConstant: return absl::StrCat(result, Constant(op), type);
      case LoopOpcode::kIndexExpr: return absl::StrCat(result, Expr(op.index()), type);
      case LoopOpcode::kLoad:
        return absl::StrCat(result, Place(op), args.empty() ? "" : absl::StrCat(" if ", args[0]), type);
      case LoopOpcode::kStore:
        return absl::StrCat("store ", Place(op), op.mode() == v1::STORE_ACCUMULATE ? " += " : " = ",
                            args.empty() ? "?" : args[0],
                            args.size() > 1 ? absl::StrCat(" if ", args[1]) : "", type);
      case LoopOpcode::kCheckIndex:
        return absl::StrCat(result, args.empty() ? "?" : args[0],
                            op.mode() == v1::INDEX_FROM_START ? " in 0.." : " from either end in 0..",
                            Expr(op.index()), args.size() > 1 ? absl::StrCat(" if ", args[1]) : "", type);
      case LoopOpcode::kReduce:
      case LoopOpcode::kScan:
        return absl::StrCat(result, ReduceName(op.mode()), " ", absl::StrJoin(args, ", "), type);
      default: return absl::StrCat(result, absl::StrJoin(args, ", "), type);
    }
  }

  std::string Place(const v1::LoopOp& op) const {
    return absl::StrCat(BufferName(op.buffer()), "[", Expr(op.index()), "]");
  }

  const v1::Kernel& kernel_;
  const v1::KernelNotes& notes_;
  std::vector<PrintedExpr> exprs_;
  std::string text_;
};

}  // namespace

std::string PrintKernel(const v1::Kernel& kernel, const v1::KernelNotes& notes) {
  return Printer(kernel, notes).Print();
}

}  // namespace kiln
