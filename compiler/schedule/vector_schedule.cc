#include "compiler/schedule/vector_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "compiler/schedule/prefetch.h"
#include "compiler/schedule/row_cache.h"
#include "compiler/schedule/row_pipeline.h"
#include "compiler/schedule/shifted_reduction.h"
#include "compiler/schedule/summed_exponentials.h"
#include "compiler/schedule/vector_lanes.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

struct VectorRule {
  void (*choose)(const KernelFacts&, const VectorTarget&, v1::VectorSchedule*);
  absl::Status (*check)(const KernelFacts&, const VectorTarget&, const v1::VectorSchedule&);
  bool optional = true;  // a kernel can do without
};

void ChooseRows(const KernelFacts& facts, const VectorTarget&, v1::VectorSchedule* schedule) {
  if (facts.WalksRows()) schedule->mutable_rows();
}

absl::Status CheckRows(const KernelFacts& facts, const VectorTarget&, const v1::VectorSchedule& schedule) {
  if (schedule.has_rows() == facts.WalksRows()) return absl::OkStatus();
  return absl::InvalidArgumentError("schedule: rows go with vectors along the last inner loop");
}

// Each sees what those before it chose; to check, none is asked before those that it relies on have passed.
constexpr VectorRule kRules[] = {
    {ChooseLanes, CheckLanes, false},
    {ChooseRows, CheckRows, false},
    {ChooseTile, CheckTile},
    {ChooseNontemporal, CheckNontemporal},
    {ChooseRowCache, CheckRowCache},
    // The cache's writer keeps exact terms.
    {ChooseSummedExponentials, CheckSummedExponentials},
    // What the cache and the sums skip is read by nobody.
    {ChooseShiftedReduction, CheckShiftedReduction},
    // What is kept may be about its estimate.
    {ChooseScaledProducts, CheckScaledProducts},
    // A shifted reduction is one pass of it.
    {ChooseRowPipeline, CheckRowPipeline},
    // A pipeline has several rows in flight, and fewer vectors of each.
    {ChooseUnroll, CheckUnroll, false},
    {ChoosePrefetches, CheckPrefetches},
};

v1::VectorSchedule Choose(const KernelFacts& facts, const VectorTarget& target, const VectorRule* without) {
  v1::VectorSchedule schedule;
  for (const VectorRule& rule : kRules) {
    if (&rule != without) rule.choose(facts, target, &schedule);
  }
  return schedule;
}

}  // namespace

v1::VectorSchedule ChooseVectorSchedule(const KernelFacts& facts, const VectorTarget& target) {
  return Choose(facts, target, nullptr);
}

absl::Status CheckVectorSchedule(const KernelFacts& facts, const VectorTarget& target,
                                 const v1::VectorSchedule& schedule) {
  for (const VectorRule& rule : kRules) KILN_RETURN_IF_ERROR(rule.check(facts, target, schedule));
  return absl::OkStatus();
}

absl::Status ScheduleVectors(const VectorTarget& target, v1::Kernel* kernel) {
  const KernelFacts facts(*kernel);
  if (!facts.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  v1::KernelSchedule& schedule = *kernel->mutable_schedule();
  if (schedule.has_threads()) return absl::InvalidArgumentError("schedule: of a GPU's threads, for a CPU");
  if (!schedule.has_vectors()) *schedule.mutable_vectors() = ChooseVectorSchedule(facts, target);
  return CheckVectorSchedule(facts, target, schedule.vectors());
}

std::vector<v1::VectorSchedule> VectorSchedules(const KernelFacts& facts, const VectorTarget& target) {
  std::vector<v1::VectorSchedule> schedules = {ChooseVectorSchedule(facts, target)};
  for (const VectorRule& rule : kRules) {
    if (!rule.optional) continue;
    v1::VectorSchedule other = Choose(facts, target, &rule);
    const std::string bytes = SerializeDeterministic(other);
    const bool known = std::any_of(schedules.begin(), schedules.end(), [&](const v1::VectorSchedule& one) {
      return SerializeDeterministic(one) == bytes;
    });
    if (!known) schedules.push_back(std::move(other));
  }
  return schedules;
}

}  // namespace kiln
