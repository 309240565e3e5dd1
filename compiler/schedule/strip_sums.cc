#include "compiler/schedule/strip_sums.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/thread_lanes.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr uint32_t kBlocksMax = 32;  // of a multiprocessor, that any knows

bool IsSum(const KernelFacts& facts, const StageFacts& info, const v1::LoopOp& op) {
  if (info.stage->inner_size() != 1 || op.args_size() > 1 || IsRead(facts, op.buffer())) return false;
  if (facts.kernel().buffers(static_cast<int>(op.buffer())).dtype() != v1::F32) return false;
  const std::optional<int64_t> stride = StripStride(facts, op.index());
  return stride && *stride >= facts.ConstantExpr(info.stage->inner(0));
}

// None where some accumulating store is no such sum, or two have one buffer.
std::vector<uint32_t> StripSumsOf(const KernelFacts& facts) {
  const v1::KernelSchedule& loops = facts.kernel().schedule();
  if (loops.chunk() < 2 || loops.parallel_dims() != 1 || facts.kernel().outer_size() != 1) return {};
  std::vector<uint32_t> sums;
  for (const StageFacts& info : facts.stages()) {
    if (info.has_scan || info.stage->inner_size() > 1) return {};
    if (info.stage->inner_size() == 1 && !facts.ConstantExpr(info.stage->inner(0))) return {};
    for (uint32_t id = info.first_op; id < info.end_op(); ++id) {
      const v1::LoopOp& op = facts.op(id);
      if (!IsAccumulatingStore(op)) continue;
      const auto same_buffer = [&](uint32_t other) { return facts.op(other).buffer() == op.buffer(); };
      if (!IsSum(facts, info, op) || std::any_of(sums.begin(), sums.end(), same_buffer)) return {};
      sums.push_back(id);
    }
  }
  return sums;
}

size_t StageNumber(const KernelFacts& facts, uint32_t op) {
  return static_cast<size_t>(&facts.StageOf(op) - facts.stages().data());
}

}  // namespace

std::optional<int64_t> StripStride(const KernelFacts& facts, uint32_t index) {
  const auto expr = [&](uint32_t number) -> const v1::ExprNode& {
    return facts.kernel().exprs(static_cast<int>(number));
  };
  const auto is = [&](uint32_t number, v1::ExprOp op, int64_t value) {
    return expr(number).op() == op && expr(number).value() == value;
  };
  const auto is_strip = [&](uint32_t number) {
    const v1::ExprNode& node = expr(number);
    return node.op() == v1::EXPR_FLOORDIV && is(node.args(0), v1::EXPR_VAR, 0) &&
           is(node.args(1), v1::EXPR_CONST, facts.kernel().schedule().chunk());
  };
  const v1::ExprNode& sum = expr(index);
  if (sum.op() != v1::EXPR_ADD || sum.args_size() != 2) return std::nullopt;
  for (const int inner : {0, 1}) {
    if (!is(sum.args(inner), v1::EXPR_VAR, 1)) continue;
    const v1::ExprNode& product = expr(sum.args(1 - inner));
    if (product.op() != v1::EXPR_MUL || product.args_size() != 2) continue;
    for (const int strip : {0, 1}) {
      if (is_strip(product.args(strip))) return facts.ConstantExpr(product.args(1 - strip));
    }
  }
  return std::nullopt;
}

void ChooseStripSums(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  if (!schedule->has_rows()) return;
  for (const uint32_t sum : StripSumsOf(facts)) schedule->mutable_rows()->mutable_strips()->add_stores(sum);
}

absl::Status CheckStripSums(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.rows().has_strips()) return absl::OkStatus();
  const std::vector<uint32_t> sums = StripSumsOf(facts);
  const auto& asked = schedule.rows().strips().stores();
  if (!sums.empty() && std::equal(sums.begin(), sums.end(), asked.begin(), asked.end()))
    return absl::OkStatus();
  return RefuseThreads(
      "strips, of other stores than all that accumulate, or of stores that are no sums of them");
}

void ChooseStripBlocks(const KernelFacts&, const Machine&, v1::ThreadSchedule* schedule) {
  if (!schedule->rows().has_strips()) return;
  const bool small = ThreadsOfBlock(*schedule) <= kBlockThreads;
  schedule->mutable_rows()->mutable_strips()->set_blocks(
      small ? static_cast<uint32_t>(cost::kStripBlocksOfMultiprocessor) : 0);
}

absl::Status CheckStripBlocks(const KernelFacts&, const Machine& machine,
                              const v1::ThreadSchedule& schedule) {
  const uint32_t blocks = schedule.rows().strips().blocks();
  if (blocks <= kBlocksMax &&
      int64_t{blocks} * ThreadsOfBlock(schedule) <= machine.gpu.threads_of_multiprocessor)
    return absl::OkStatus();
  return RefuseThreads(absl::StrCat(blocks, " blocks of a multiprocessor"));
}

absl::Status CheckStripsFit(const KernelFacts& facts, const Machine& machine,
                            const v1::ThreadSchedule& schedule) {
  if (!schedule.rows().has_strips()) return absl::OkStatus();
  int64_t words = 0;
  int64_t shared_bytes = 0;
  for (const uint32_t sum : schedule.rows().strips().stores()) {
    const size_t stage = StageNumber(facts, sum);
    const int64_t iterations = IterationsOf(facts, schedule, stage);
    if (iterations / schedule.threads() > schedule.unroll(static_cast<int>(stage)))
      return RefuseThreads("some iterations of a strip's sums are not unrolled");
    words += (iterations + schedule.threads() - 1) / schedule.threads() * schedule.lanes();
    shared_bytes += iterations * schedule.lanes() * 4;
  }
  if (words > machine.gpu.registers.strip_sums) return RefuseThreads("too few registers for a strip's sums");
  if (schedule.rows().points_per_block() > 1 && shared_bytes > machine.gpu.shared_bytes_of_strips)
    return RefuseThreads("too little shared memory for a strip's sums");
  for (size_t stage = 0; stage < facts.stages().size(); ++stage) {
    const StageFacts& info = facts.stages()[stage];
    if (info.stage->inner_size() == 0) continue;
    if (*facts.ConstantExpr(info.stage->inner(0)) % schedule.lanes() != 0)
      return RefuseThreads("a strip's rows are no whole vectors");
    if (schedule.aligned() != v1::ALIGNED_NONE && !KeepsAlignment(facts, schedule, stage))
      return RefuseThreads("vectors of some rows of a strip may be aligned and others not");
  }
  return absl::OkStatus();
}

}  // namespace kiln
