#include "compiler/graph/schedule_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln {
namespace {

std::string Op(uint32_t id) { return absl::StrCat("%", id); }

const char* LevelName(v1::CacheLevel level) {
  switch (level) {
    case v1::CACHE_FIRST_LEVEL: return "into the first level";
    case v1::CACHE_SECOND_LEVEL: return "into the second level";
    default: return "for one use";
  }
}

template <typename Numbers>
std::string NumbersText(const Numbers& numbers, absl::string_view sign) {
  return absl::StrJoin(numbers, " ", [&](std::string* out, uint32_t k) { absl::StrAppend(out, sign, k); });
}

std::string PrefetchText(const v1::Prefetch& prefetch) {
  std::string ahead = absl::StrCat(prefetch.bytes_ahead(), " bytes ahead ");
  if (prefetch.bytes_ahead() == 0) {
    ahead = absl::StrCat(prefetch.rows_ahead(), prefetch.rows_ahead() == 1 ? " row ahead " : " rows ahead ");
    if (prefetch.shares() > 0) {
      absl::StrAppend(&ahead, "(", prefetch.share() + 1, " of ", prefetch.shares(), " shares) ");
    }
  }
  return absl::StrCat("prefetch of ", Op(prefetch.load()), " ", ahead, LevelName(prefetch.level()));
}

void AddRows(const v1::RowSchedule& rows, std::vector<std::string>* parts) {
  const auto one = [](uint32_t unroll) { return unroll == 1; };
  if (!std::all_of(rows.unroll().begin(), rows.unroll().end(), one)) {
    parts->push_back(absl::StrCat("stages unrolled ", NumbersText(rows.unroll(), "")));
  }
  if (rows.has_cache()) {
    std::string cache =
        absl::StrCat("row cache of ", Op(rows.cache().writer()), " for ", Op(rows.cache().reader()));
    if (rows.cache().scaled_size() > 0) {
      absl::StrAppend(&cache, ", scaled in ", NumbersText(rows.cache().scaled(), "%"));
    }
    parts->push_back(std::move(cache));
  }
  if (rows.summed_exponentials_size() > 0) {
    parts->push_back(absl::StrCat("sums of exponentials ", NumbersText(rows.summed_exponentials(), "%")));
  }
  if (const v1::ShiftedReduction& shifted = rows.shifted(); rows.has_shifted()) {
    parts->push_back(absl::StrCat(Op(shifted.reduced()), " and ", Op(shifted.sum()),
                                  " in one pass about an estimate of the ",
                                  shifted.of_mean() ? "mean " : "maximum ", Op(shifted.center())));
  }
  if (const v1::RowPipeline& pipeline = rows.pipeline(); rows.has_pipeline()) {
    parts->push_back(pipeline.group_rows() == 0
                         ? std::string("row pipeline")
                         : absl::StrCat("rows in groups of ", pipeline.group_rows(), ", ",
                                        pipeline.rows_at_once(), " at once, results by blocks of ",
                                        pipeline.block_columns(), " columns"));
  }
}

const char* AlignedName(v1::AlignedCode aligned) {
  switch (aligned) {
    case v1::ALIGNED_KERNEL: return "for the kernel";
    case v1::ALIGNED_POINT: return "for a point";
    case v1::ALIGNED_STAGE: return "for a stage";
    default: return "?";
  }
}

// What more there is to say of a form than its numbers.
void AddForm(const v1::ThreadSchedule& schedule, std::vector<std::string>* parts) {
  if (const v1::TileThreads& tile = schedule.tile(); schedule.has_tile()) {
    parts->push_back(absl::StrCat("tiles along i", tile.loop(), ", ", NumbersText(tile.transposed(), "%"),
                                  " transposed", tile.unrolled() ? ", unrolled points" : ""));
  }
  if (schedule.has_columns()) {
    parts->push_back(absl::StrCat("loops shared by level ", NumbersText(schedule.columns().levels(), "")));
  }
  const v1::RowThreads& rows = schedule.rows();
  if (rows.flattened_size() > 0) {
    parts->push_back(absl::StrCat("flattened loops of stages ", NumbersText(rows.flattened(), "")));
  }
  if (rows.has_softmax()) {
    parts->push_back(
        absl::StrCat(Op(rows.softmax().maximum()), " and ", Op(rows.softmax().sum()), " in one pass"));
  }
  if (rows.has_strips()) {
    std::string strips = absl::StrCat("strips for the sums ", NumbersText(rows.strips().stores(), "%"));
    if (rows.strips().blocks() > 0) {
      absl::StrAppend(&strips, ", ", rows.strips().blocks(), " blocks a multiprocessor");
    }
    parts->push_back(std::move(strips));
  }
}

}  // namespace

std::string ScheduleText(const v1::ThreadSchedule& schedule) {
  std::string text = absl::StrCat(schedule.threads(), " threads");
  const auto add = [&](uint32_t number, absl::string_view of) {
    if (number > 1) absl::StrAppend(&text, ", ", number, " ", of);
  };
  switch (schedule.form_case()) {
    case v1::ThreadSchedule::kRows: add(schedule.rows().points_per_block(), "points a block"); break;
    case v1::ThreadSchedule::kColumns: add(schedule.columns().rows(), "rows"); break;
    case v1::ThreadSchedule::kTile: add(schedule.tile().side(), "points a tile's side"); break;
    case v1::ThreadSchedule::kGemm:
      absl::StrAppend(&text, ", a gemm by ", ScheduleText(schedule.gemm()));
      break;
    default:
      add(schedule.points().vectors_per_group(), "vectors a group");
      add(schedule.points().groups_per_thread(), "groups a thread");
  }
  add(schedule.lanes(), "lanes");
  std::vector<std::string> parts = {text};
  AddForm(schedule, &parts);
  if (schedule.wide_points()) parts.emplace_back("points in 64 bits");
  if (schedule.loads_first()) parts.emplace_back("loads first");
  if (schedule.aligned() != v1::ALIGNED_NONE) {
    parts.push_back(absl::StrCat("aligned code ", AlignedName(schedule.aligned())));
  }
  const auto one = [](uint32_t unroll) { return unroll == 1; };
  if (!std::all_of(schedule.unroll().begin(), schedule.unroll().end(), one)) {
    parts.push_back(absl::StrCat("stages unrolled ", NumbersText(schedule.unroll(), "")));
  }
  return absl::StrJoin(parts, "; ");
}

std::string ScheduleText(const v1::VectorSchedule& schedule) {
  std::vector<std::string> parts = {schedule.lanes() == 1 ? "scalars"
                                                          : absl::StrCat(schedule.lanes(), " lanes")};
  if (schedule.has_tile()) {
    parts.push_back(schedule.tile().packed_size() == 0
                        ? std::string("tiles")
                        : absl::StrCat("tiles, ", NumbersText(schedule.tile().packed(), "%"), " transposed"));
  }
  AddRows(schedule.rows(), &parts);
  if (schedule.nontemporal_size() > 0) {
    parts.push_back(absl::StrCat("nontemporal ", NumbersText(schedule.nontemporal(), "b"), " from ",
                                 schedule.nontemporal_bytes_min(), " bytes"));
    // Each buffer has one store.
    if (schedule.nontemporal_stores_size() == 0) {
      parts.back() += ", of which no store fills lines";
    } else if (schedule.nontemporal_stores_size() < schedule.nontemporal_size()) {
      absl::StrAppend(&parts.back(), " by ", NumbersText(schedule.nontemporal_stores(), "%"), " alone");
    }
  }
  for (const v1::Prefetch& prefetch : schedule.prefetches()) parts.push_back(PrefetchText(prefetch));
  return absl::StrJoin(parts, "; ");
}

std::string ScheduleText(const v1::SkinnySchedule& schedule) {
  std::string text = absl::StrCat(16 * schedule.tiles(), " columns, ", schedule.warps(), " warps, ",
                                  schedule.blocks(), schedule.blocks() == 1 ? " block" : " blocks");
  if (schedule.steps() > 1) absl::StrAppend(&text, ", ", schedule.steps(), " steps in flight");
  return text;
}

std::string ScheduleText(const v1::KernelSchedule& schedule) {
  if (schedule.has_threads()) return ScheduleText(schedule.threads());
  return schedule.has_vectors() ? ScheduleText(schedule.vectors()) : "";
}

}  // namespace kiln
