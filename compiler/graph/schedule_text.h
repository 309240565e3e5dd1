// Schedules for people: of a GPU's threads, "256 threads, 4 turns"; of a CPU's vectors, parts that a
// semicolon separates, where ops and buffers are %3 and b3. Threads: pure functions.
#pragma once

#include <string>

#include "kiln/v1/kernel.pb.h"

namespace kiln {

std::string ScheduleText(const v1::ThreadSchedule& schedule);
std::string ScheduleText(const v1::VectorSchedule& schedule);

}  // namespace kiln
