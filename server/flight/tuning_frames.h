// What workers are asked for what is measured, and what their answers are. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"
#include "server/flight/flight_request.h"
#include "server/pool/worker_pool.h"

namespace kiln {

// A request to plan; `keep_traced_layout`: without making images channels-last.
v1::Frame PlanFrame(const FlightRequest& asked, bool keep_traced_layout);
// The plan, checked, with `compiler` named in those of its tunables of which that compiler's code is
// measured, so that a record holds for no other's.
absl::StatusOr<v1::PlanReply> PlanOf(WorkerResult result, const std::string& compiler);
// The serialized kernel with that schedule. INVALID_ARGUMENT where it is no kernel, or the schedule is not
// for such a target or has other loops than the kernel, whose units are counted by them. Whether the kernel
// allows its numbers says the worker that emits it.
absl::StatusOr<std::string> WithSchedule(const std::string& kernel, const v1::KernelSchedule& schedule,
                                         const v1::Target& target);
// To emit the kernel by each of a tunable's schedules; the first is the kernel's own. Errors: likewise.
absl::StatusOr<std::vector<v1::Frame>> FramesOfSchedules(const v1::KernelTunable& tunable,
                                                         const std::string& kernel,
                                                         const v1::KernelNotes& notes,
                                                         const v1::Target& target);
// To emit kernels of our own for a gemm.
v1::Frame FrameOfGemm(const v1::Gemm& gemm, const v1::Target& target);
// Each with its schedule's text. Without them the library's algorithms are measured all the same, so whatever
// befell the worker is only said.
std::vector<v1::NativeKernel> NativesOf(const WorkerResult& result);

}  // namespace kiln
