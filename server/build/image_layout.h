// Max-autotune: whether a program's images are channels-last or as they were traced, by what both
// plans' convolutions were measured to take.
//
// A plan's price is the sum over its calls of a convolution, each by its fastest candidate, and what its
// kernels' launches and the least bytes that they move take at the rates of two measured copies. Other
// library calls have to be the same in both. The traced layout must be cheaper by as much as a candidate that
// wins (Tuner::kWorthwhile). Where anything could not be measured, `without` says what, and images lie by
// points. What is measured are records like any other, so another program with these convolutions pays
// nothing. As soon as the traced layout's are as expensive as the other's no more of them are measured.
//
// Blocks as the session does. Errors: none.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"
#include "server/tune/tuner.h"

namespace kiln {

// Called at most once, and only where the first plan's price is known.
using PlanAsTraced = std::function<absl::StatusOr<v1::PlanReply>()>;

// `as_traced` is the second plan where there is one.
v1::ImageLayout ChooseImageLayout(const v1::PlanReply& channels_last, const PlanAsTraced& plan_as_traced,
                                  Tuner::Session& session, v1::PlanReply* as_traced);

}  // namespace kiln
