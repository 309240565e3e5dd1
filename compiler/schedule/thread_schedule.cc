#include "compiler/schedule/thread_schedule.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/schedule/column_threads.h"
#include "compiler/schedule/gemm_threads.h"
#include "compiler/schedule/point_threads.h"
#include "compiler/schedule/row_threads.h"
#include "compiler/schedule/softmax_sum.h"
#include "compiler/schedule/strip_sums.h"
#include "compiler/schedule/thread_lanes.h"
#include "compiler/schedule/thread_unroll.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/schedule/tile_threads.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

using Chooses = void(const KernelFacts&, const Machine&, v1::ThreadSchedule*);
using Checks = absl::Status(const KernelFacts&, const Machine&, const v1::ThreadSchedule&);
using Lists = std::vector<v1::ThreadSchedule>(const KernelFacts&, const Machine&, const v1::ThreadSchedule&);

enum class Kind {
  kPlain,
  kTried,     // left out where what the rules behind it choose does not suffice for it
  kFollowing  // chosen again where a rule before it chooses otherwise
};

struct ThreadRule {
  Chooses* choose;
  Checks* check;
  Lists* others = nullptr;  // what else is worth measuring
  Kind kind = Kind::kPlain;
};

void ChooseNothing(const KernelFacts&, const Machine&, v1::ThreadSchedule*) {}

absl::Status CheckThreads(const KernelFacts&, const Machine&, const v1::ThreadSchedule& schedule) {
  const uint32_t threads = schedule.threads();
  if (threads > 0 && threads % kWarp == 0 && threads <= kBlockThreadsMax) return absl::OkStatus();
  return RefuseThreads(
      absl::StrCat(threads, " threads, where a multiple of ", kWarp, " up to ", kBlockThreadsMax, " is due"));
}

// More points than 32 bits are known to hold.
bool AreMany(const KernelFacts& facts) { return PointsEstimate(facts, kLoopMax) == kLoopMax; }

void ChooseWidePoints(const KernelFacts& facts, const Machine&, v1::ThreadSchedule* schedule) {
  if (facts.kernel().outer_size() > 1 && AreMany(facts)) schedule->set_wide_points(true);
}

absl::Status CheckWidePoints(const KernelFacts& facts, const Machine&, const v1::ThreadSchedule& schedule) {
  const bool of_several_loops = facts.kernel().outer_size() > 1;
  if (schedule.wide_points() && !of_several_loops) return RefuseThreads("wide points of one outer loop");
  if (schedule.wide_points() || !of_several_loops || !AreMany(facts)) return absl::OkStatus();
  return RefuseThreads("points that 32 bits may not hold");
}

// Each sees what those before it chose; to check, none is asked before those that it relies on have passed.
constexpr ThreadRule kRules[] = {
    {ChooseForm, CheckForm},
    {ChooseStripSums, CheckStripSums, nullptr, Kind::kTried},
    {ChooseSoftmaxSum, CheckSoftmaxSum, nullptr, Kind::kTried},
    // A strip's sums run along the lanes, other accumulating stores do not.
    {ChooseThreadLanes, CheckThreadLanes},
    // Vectors are whole in every iteration of loops that are one.
    {ChooseFlattened, CheckFlattened},
    {ChooseNothing, CheckThreads},  // those behind it choose them
    {ChooseWidePoints, CheckWidePoints},
    // Scalars that are read against the threads; where nothing is, points are a thread's own.
    {ChooseTileThreads, CheckTileThreads, OtherTileThreads},
    {ChoosePointThreads, CheckPointThreads, OtherPointThreads},
    {ChooseColumnThreads, CheckColumnThreads, OtherColumnThreads},
    {ChooseRowThreads, CheckRowThreads, OtherRowThreads},
    {ChooseAligned, CheckAligned, nullptr, Kind::kFollowing},
    // Threads share the iterations and the registers.
    {ChooseThreadUnroll, CheckThreadUnroll, nullptr, Kind::kFollowing},
    {ChooseLoadsFirst, CheckLoadsFirst},
    {ChooseStripBlocks, CheckStripBlocks, nullptr, Kind::kFollowing},
    {ChooseNothing, CheckStripsFit},
    {ChooseNothing, CheckSoftmaxFits},
};

v1::ThreadSchedule Choose(const KernelFacts& facts, const Machine& machine, bool tries) {
  v1::ThreadSchedule schedule;
  for (const ThreadRule& rule : kRules) {
    if (tries || rule.kind != Kind::kTried) rule.choose(facts, machine, &schedule);
  }
  return schedule;
}

v1::ThreadSchedule ChooseByRules(const KernelFacts& facts, const Machine& machine) {
  v1::ThreadSchedule schedule = Choose(facts, machine, true);
  if (CheckThreadSchedule(facts, machine, schedule).ok()) return schedule;
  return Choose(facts, machine, false);
}

}  // namespace

v1::ThreadSchedule ChooseThreadSchedule(const KernelFacts& facts, const Machine& machine) {
  if (std::optional<v1::ThreadSchedule> gemm = ChooseGemmThreads(facts, machine)) return *std::move(gemm);
  return ChooseByRules(facts, machine);
}

absl::Status CheckThreadSchedule(const KernelFacts& facts, const Machine& machine,
                                 const v1::ThreadSchedule& schedule) {
  if (schedule.has_gemm()) return CheckGemmThreads(facts, machine, schedule);
  for (const ThreadRule& rule : kRules) KILN_RETURN_IF_ERROR(rule.check(facts, machine, schedule));
  return absl::OkStatus();
}

absl::Status ScheduleThreads(const Machine& machine, v1::Kernel* kernel) {
  const KernelFacts facts(*kernel);
  if (!facts.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  v1::KernelSchedule& schedule = *kernel->mutable_schedule();
  if (schedule.has_vectors()) return RefuseThreads("of a CPU's vectors, for a GPU");
  if (!schedule.has_threads()) *schedule.mutable_threads() = ChooseThreadSchedule(facts, machine);
  return CheckThreadSchedule(facts, machine, schedule.threads());
}

std::vector<v1::ThreadSchedule> ThreadSchedules(const KernelFacts& facts, const Machine& machine) {
  if (std::vector<v1::ThreadSchedule> gemms = GemmThreadSchedules(facts, machine); !gemms.empty()) {
    gemms.push_back(ChooseByRules(facts, machine));
    return gemms;
  }
  const v1::ThreadSchedule own = ChooseThreadSchedule(facts, machine);
  std::vector<v1::ThreadSchedule> schedules = {own};
  const auto add = [&](v1::ThreadSchedule other) {
    if (!CheckThreads(facts, machine, other).ok()) return;
    for (const ThreadRule& rule : kRules) {
      if (rule.kind == Kind::kFollowing) rule.choose(facts, machine, &other);
    }
    const std::string bytes = SerializeDeterministic(other);
    const bool known = std::any_of(schedules.begin(), schedules.end(), [&](const v1::ThreadSchedule& one) {
      return SerializeDeterministic(one) == bytes;
    });
    if (known || schedules.size() > kOtherSchedulesMax || !CheckThreadSchedule(facts, machine, other).ok())
      return;
    schedules.push_back(std::move(other));
  };
  for (const ThreadRule& rule : kRules) {
    if (rule.others == nullptr) continue;
    for (v1::ThreadSchedule& other : rule.others(facts, machine, own)) add(std::move(other));
  }
  return schedules;
}

}  // namespace kiln
