#include "compiler/artifact/tunable_kernels.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/ops.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

bool IsTrap(const v1::LoopOp& op) {
  const auto opcode = static_cast<LoopOpcode>(op.op());
  return opcode == LoopOpcode::kCheckIndex || (IsIntegerDivision(opcode) && !ir::IsFloating(op.dtype()));
}

std::optional<int64_t> ConstantOf(const v1::Kernel& kernel, uint32_t expr) {
  const v1::ExprNode& node = kernel.exprs(static_cast<int>(expr));
  if (node.op() == v1::EXPR_CONST) return node.value();
  if (node.op() != v1::EXPR_ADD && node.op() != v1::EXPR_MUL) return std::nullopt;
  int64_t value = node.op() == v1::EXPR_ADD ? 0 : 1;
  for (const uint32_t arg : node.args()) {
    const std::optional<int64_t> part = ConstantOf(kernel, arg);
    if (!part.has_value()) return std::nullopt;
    value = node.op() == v1::EXPR_ADD ? value + *part : value * *part;
  }
  return value;
}

bool RunsOnAnyData(const v1::Kernel& kernel) {
  if (kernel.symbol_count() > 0) return false;
  for (const v1::ExprNode& node : kernel.exprs()) {
    if (node.op() == v1::EXPR_INDIRECT) return false;
  }
  for (const v1::Stage& stage : kernel.stages()) {
    if (std::any_of(stage.ops().begin(), stage.ops().end(), IsTrap)) return false;
  }
  return true;
}

// False for what has no fixed size, or too large a one.
bool AddOperands(const v1::Kernel& kernel, v1::KernelTunable* tunable) {
  uint64_t bytes = 0;
  for (const v1::KernelBuffer& buffer : kernel.buffers()) {
    const std::optional<int64_t> elements = ConstantOf(kernel, buffer.span());
    if (!elements.has_value() || *elements < 1 || static_cast<uint64_t>(*elements) > kTunableBytesMax)
      return false;
    v1::KernelOperand* operand = tunable->add_operands();
    operand->set_dtype(buffer.dtype());
    operand->set_elements(*elements);
    operand->set_access(buffer.access());
    bytes += static_cast<uint64_t>(*elements) * static_cast<uint64_t>(ir::ByteWidth(buffer.dtype()));
    if (bytes > kTunableBytesMax) return false;
  }
  return true;
}

struct Planned {
  int kernel;
  uint64_t launches = 0;
  int64_t units = 0;
};

}  // namespace

std::vector<v1::Tunable> TunableKernelsOf(const v1::PlanReply& plan, const CodegenBackend& backend,
                                          const Machine& machine) {
  const auto bytes_min = static_cast<uint64_t>(cost::MeasuredBytesMin(machine));
  std::vector<Planned> planned;
  for (int k = 0; k < plan.kernels_size(); ++k) planned.push_back({k});
  for (const v1::Step& step : plan.program().steps()) {
    if (!step.has_launch()) continue;
    Planned& of = planned[step.launch().kernel()];
    ++of.launches;
    of.units = step.launch().units().has_expr() ? 0 : step.launch().units().value();
  }
  // What has no fixed sizes is measured by nobody.
  const auto moved = [&](const Planned& one) {
    const v1::PlannedKernel& kernel = plan.kernels(one.kernel);
    if (kernel.bytes_read().has_expr() || kernel.bytes_written().has_expr()) return uint64_t{0};
    return static_cast<uint64_t>(kernel.bytes_read().value() + kernel.bytes_written().value());
  };
  std::stable_sort(planned.begin(), planned.end(), [&](const Planned& a, const Planned& b) {
    return a.launches * moved(a) > b.launches * moved(b);
  });
  std::vector<v1::Tunable> tunables;
  for (const Planned& one : planned) {
    if (tunables.size() == kTunableKernelsMax) break;
    if (one.units < 1 || moved(one) < bytes_min) continue;
    const std::string& bytes = plan.kernels(one.kernel).kernel();
    v1::Kernel kernel;
    v1::Tunable tunable;
    v1::KernelTunable* measured = tunable.mutable_kernel();
    if (!kernel.ParseFromString(bytes) || !RunsOnAnyData(kernel) || !AddOperands(kernel, measured)) continue;
    measured->set_digest(Sha256(bytes));
    measured->set_units(one.units);
    for (v1::KernelSchedule& schedule : backend.Schedules(kernel)) {
      *measured->add_schedules() = std::move(schedule);
    }
    if (measured->schedules_size() > 1) tunables.push_back(std::move(tunable));
  }
  return tunables;
}

}  // namespace kiln
