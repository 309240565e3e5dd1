// A schedule of a GPU's threads for people: "256 threads, 4 turns". Threads: pure function.
#pragma once

#include <string>

#include "kiln/v1/kernel.pb.h"

namespace kiln {

std::string ScheduleText(const v1::ThreadSchedule& schedule);

}  // namespace kiln
