#include "compiler/schedule/point_threads.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kGroupsOfRandom = 4;
constexpr uint32_t kGroupMax = 8;

}  // namespace

void ChoosePointThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule) {
  if (!schedule->has_points()) return;
  v1::PointThreads* points = schedule->mutable_points();
  points->set_vectors_per_group(1);
  points->set_groups_per_thread(1);
  const int64_t many = cost::ManyPoints(machine), lanes = schedule->lanes();
  if (!HasInnerLoops(facts) && AllCheap(facts)) {
    int64_t narrowest = kAccessBytes;
    for (const v1::LoopOp* op : facts.ops()) {
      if (!IsAccess(*op)) continue;
      const v1::DType dtype = facts.kernel().buffers(static_cast<int>(op->buffer())).dtype();
      narrowest = std::min(narrowest, ir::ByteWidth(dtype) * lanes);
    }
    const int64_t most = std::clamp<int64_t>(kAccessBytes / narrowest, 1, kGroupMax);
    int64_t group = 1;
    while (group < most && PointsEstimate(facts, 2 * many * most) >= 2 * many * group) group *= 2;
    points->set_vectors_per_group(static_cast<uint32_t>(group));
  }
  const int64_t enough = many * kGroupsOfRandom * lanes * points->vectors_per_group();
  if (DrawsNumbers(facts) && PointsEstimate(facts, enough) >= enough)
    points->set_groups_per_thread(kGroupsOfRandom);
}

absl::Status CheckPointThreads(const KernelFacts&, const Machine&, const v1::ThreadSchedule& schedule) {
  if (!schedule.has_points()) return absl::OkStatus();
  const uint32_t group = schedule.points().vectors_per_group(),
                 groups = schedule.points().groups_per_thread();
  if (group > 0 && group <= kGroupMax && groups > 0 && groups <= kPointsPerThreadMax &&
      uint64_t{group} * groups * schedule.lanes() <= kPointsPerThreadMax) {
    return absl::OkStatus();
  }
  return RefuseThreads(absl::StrCat(groups, " groups of ", group, " vectors of ", schedule.lanes(),
                                    " lanes, where ", kPointsPerThreadMax, " points a thread are the most"));
}

std::vector<v1::ThreadSchedule> OtherPointThreads(const KernelFacts&, const Machine&,
                                                  const v1::ThreadSchedule& own) {
  if (!own.has_points()) return {};
  std::vector<v1::ThreadSchedule> others = {own, own};
  others[0].mutable_points()->set_vectors_per_group(own.points().vectors_per_group() * 2);
  others[1].mutable_points()->set_vectors_per_group(own.points().vectors_per_group() / 2);
  return others;
}

}  // namespace kiln
