#include "compiler/graph/schedule_text.h"

#include "absl/strings/str_cat.h"

namespace kiln {

std::string ScheduleText(const v1::ThreadSchedule& schedule) {
  std::string text = absl::StrCat(schedule.threads(), " threads");
  const auto add = [&](uint32_t number, const char* of) {
    if (number > 1) absl::StrAppend(&text, ", ", number, " ", of);
  };
  add(schedule.warps(), "warps");
  add(schedule.rows(), "rows");
  add(schedule.turns(), "turns");
  add(schedule.rounds(), "rounds");
  add(schedule.tile(), "points a tile's side");
  return text;
}

}  // namespace kiln
