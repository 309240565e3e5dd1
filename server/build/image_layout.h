// Max-autotune: chooses a program's image layout, channels-last or as traced, by the measured times of both
// plans' convolutions.
//
// A plan's cost is the sum over its convolutions, each by its fastest candidate, plus its kernels' launches
// and their least memory traffic at the rates of two measured copies. All other library calls must be the
// same in both plans. The traced layout must win by the margin of any candidate (Tuner::kWorthwhile). Where a
// measurement is missing, `without` says which, and images are channels-last. Measurements are ordinary
// tuning records, so another program with these convolutions measures nothing. Once the traced layout costs
// as much as the other, the rest of its convolutions is not measured.
//
// Blocks as the session does. Errors: none.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"
#include "server/tune/tuner.h"

namespace kiln {

// Called at most once, and only where the first plan's cost is known.
using PlanTracedLayout = std::function<absl::StatusOr<v1::PlanReply>()>;

// `traced_layout` is the second plan where there is one.
v1::ImageLayout ChooseImageLayout(const v1::PlanReply& channels_last,
                                  const PlanTracedLayout& plan_traced_layout, Tuner::Session& session,
                                  v1::PlanReply* traced_layout);

}  // namespace kiln
