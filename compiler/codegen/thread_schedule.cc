// The numbers by which threads share a kernel as a ThreadSchedule: which ones a kernel allows, and which are
// worth measuring beside the chosen ones.
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <vector>

#include "absl/numeric/bits.h"
#include "compiler/codegen/thread_emitter.h"

namespace kiln {
namespace {

constexpr unsigned kTurnsMax = 8;
constexpr size_t kAlternativesMax = 4;

v1::ThreadSchedule With(v1::ThreadSchedule schedule, unsigned threads, unsigned rows) {
  schedule.set_threads(threads);
  schedule.set_rows(rows);
  return schedule;
}

v1::ThreadSchedule WithWarps(v1::ThreadSchedule schedule, unsigned threads, unsigned warps) {
  schedule.set_threads(threads);
  schedule.set_warps(warps);
  return schedule;
}

v1::ThreadSchedule WithTurns(v1::ThreadSchedule schedule, unsigned turns, unsigned rounds) {
  schedule.set_turns(turns);
  schedule.set_rounds(rounds);
  return schedule;
}

v1::ThreadSchedule WithTile(v1::ThreadSchedule schedule, unsigned tile) {
  schedule.set_tile(tile);
  return schedule;
}

}  // namespace

v1::ThreadSchedule ThreadEmitter::Chosen() const {
  v1::ThreadSchedule schedule;
  schedule.set_threads(threads_);
  schedule.set_warps(warps_);
  schedule.set_rows(rows_);
  schedule.set_turns(turns_);
  schedule.set_rounds(rounds_);
  schedule.set_tile(static_cast<uint32_t>(tile_));
  return schedule;
}

bool ThreadEmitter::Use(const v1::ThreadSchedule& schedule) {
  const unsigned threads = schedule.threads();
  if (threads == 0 || threads % kWarp != 0 || threads > kThreadsMax) return false;
  return block_shares_point_ ? UseForSharedPoints(schedule) : UseForOwnPoints(schedule);
}

bool ThreadEmitter::UseForSharedPoints(const v1::ThreadSchedule& schedule) {
  if (schedule.rows() != 1 || schedule.turns() != 1 || schedule.rounds() != 1 || schedule.tile() != 0)
    return false;
  const unsigned warps = schedule.warps();
  if (warps != 1 && (schedule.threads() != kWarp || warps == 0 || warps > kThreadsMax / kWarp)) return false;
  threads_ = schedule.threads();
  warps_ = warps;
  if (!strip_sums_.empty()) return StripsFit();
  return !softmax_sum_ || SoftmaxSumFits();
}

bool ThreadEmitter::UseForOwnPoints(const v1::ThreadSchedule& schedule) {
  if (schedule.warps() != 1) return false;
  const unsigned threads = schedule.threads(), rows = schedule.rows(), turns = schedule.turns(),
                 rounds = schedule.rounds();
  if (turns == 0 || rounds == 0) return false;
  const bool in_a_row = turns > 1 || rounds > 1;
  if (schedule.tile() != 0) {
    if (in_a_row || rows != 1 || threads != kTileThreads || !TileFits(schedule.tile())) return false;
  } else if (rows != 1) {
    if (in_a_row || vector_lanes_ > 1 || !absl::has_single_bit(rows) || !absl::has_single_bit(threads) ||
        threads / rows < kColumnsMin || !RowsFit(rows, threads)) {
      return false;
    }
  } else if (turns > kTurnsMax || rounds > kPointsPerThreadMax ||
             uint64_t{turns} * rounds * vector_lanes_ > kPointsPerThreadMax) {
    return false;
  }
  threads_ = threads;
  rows_ = rows;
  columns_ = threads / rows;
  turns_ = turns;
  rounds_ = rounds;
  tile_ = schedule.tile();
  return true;
}

// Half and twice of what was chosen, and the other kind of sharing where there is one; not all are allowed.
std::vector<v1::ThreadSchedule> ThreadEmitter::Alternatives(const v1::ThreadSchedule& own) const {
  const unsigned threads = own.threads();
  if (block_shares_point_) {
    const auto block = [&](unsigned wanted) {
      return WithWarps(own, WithEqualTurns(std::max(wanted / kWarp, 1u) * kWarp), 1);
    };
    if (own.warps() > 1) {
      return {WithWarps(own, kWarp, own.warps() / 2), WithWarps(own, kWarp, own.warps() * 2),
              block(2 * kWarp), block(4 * kWarp)};
    }
    return {block(threads / 2), block(threads * 2), WithWarps(own, kWarp, kThreads / kWarp),
            block(threads / 4), block(threads * 4)};
  }
  if (own.tile() != 0) {
    return {WithTile(own, own.tile() == kTileMin ? kTileMax : kTileMin), WithTile(own, 0)};
  }
  if (own.rows() > 1) {
    return {With(own, threads * 2, own.rows() * 2), With(own, threads / 2, own.rows() / 2),
            With(own, threads, own.rows() * 2), With(own, threads, own.rows() / 2), With(own, kThreads, 1)};
  }
  return {WithTurns(own, own.turns() * 2, own.rounds()),
          WithTurns(own, own.turns() / 2, own.rounds()),
          With(own, kThreads, 4),
          With(own, kThreads, 8),
          With(own, threads / 2, 1),
          With(own, threads * 2, 1)};
}

std::vector<v1::ThreadSchedule> ThreadEmitter::Schedules() {
  if (!facts_.ExpressionsFit()) return {};
  ChooseSchedule();
  std::vector<v1::ThreadSchedule> schedules = {Chosen()};
  for (const v1::ThreadSchedule& other : Alternatives(schedules.front())) {
    const bool known = std::any_of(schedules.begin(), schedules.end(), [&](const v1::ThreadSchedule& one) {
      return google::protobuf::util::MessageDifferencer::Equals(one, other);
    });
    if (!known && schedules.size() <= kAlternativesMax && Use(other)) schedules.push_back(other);
  }
  return schedules;
}

}  // namespace kiln
