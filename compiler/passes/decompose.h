// Pass: composite ATen operators become core ones, by the table of decomposition.h, until none is left.
#pragma once

#include "absl/status/status.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

struct DecomposeOptions {
  bool fallback_random = false;  // keep every random operator as the caller's own
  Machine machine;
};

absl::Status Decompose(Graph& graph, const DecomposeOptions& options);

}  // namespace kiln
