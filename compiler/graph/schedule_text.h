// Schedules for people: parts that a semicolon separates, where ops and buffers are %3 and b3. Of a GPU's
// threads the first has the numbers: "256 threads, 4 vectors a group, 2 lanes". Of a gemm of few rows: "16
// columns, 8 warps, 2 blocks, 3 steps in flight". Threads: pure functions.
#pragma once

#include <string>

#include "kiln/v1/kernel.pb.h"

namespace kiln {

std::string ScheduleText(const v1::ThreadSchedule& schedule);
std::string ScheduleText(const v1::VectorSchedule& schedule);
std::string ScheduleText(const v1::SkinnySchedule& schedule);
// Of either device; empty where there is none. Loops are not said.
std::string ScheduleText(const v1::KernelSchedule& schedule);

}  // namespace kiln
