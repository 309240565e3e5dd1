// Schedules for people: parts that a semicolon separates, where ops and buffers are %3 and b3. Of a GPU's
// threads the first has the numbers: "256 threads, 4 vectors a group, 2 lanes". Threads: pure functions.
#pragma once

#include <string>

#include "kiln/v1/kernel.pb.h"

namespace kiln {

std::string ScheduleText(const v1::ThreadSchedule& schedule);
std::string ScheduleText(const v1::VectorSchedule& schedule);

}  // namespace kiln
