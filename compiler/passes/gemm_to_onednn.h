// Pass: gemms of F32 on a CPU, with or without a bias, as oneDNN's (mkldnn._linear_pointwise).
//
// ATen's own are MKL's, which leaves AVX-512 unused on processors that are not Intel's (docs/decisions/0007
// has numbers). Only where the left matrix has its rows one after the other: another would be copied at each
// call. The library makes the result, so it is in no memory of ours. Small gemms stay, for a call of
// oneDNN's costs 10 µs more; of a size that changes, an estimate counts. Runs last. Errors: none.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

absl::Status GemmToOnednn(Graph& graph, const Machine& machine);

}  // namespace kiln
