// The passes from an imported graph to one of core operators (core_set.h), in one visible order.
//
// The graph is verified after every pass: a pass that breaks it is our bug, INTERNAL. What a pass
// finds wrong in the caller's graph is INVALID_ARGUMENT and names the node. Threads: none shared.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "compiler/graph/graph.h"
#include "compiler/target/machine.h"

namespace kiln {

struct PassTime {
  std::string pass;
  absl::Duration duration;
};

struct PassOptions {
  Machine machine;
  bool fallback_random = false;         // random operators stay the caller's, so that they draw as eager does
  bool keep_traced_layout = false;      // prefer_channels_last is left out
  bool* chose_channels_last = nullptr;  // set: whether prefer_channels_last changed the graph
  // Called with the text of the graph after each pass that changed it; printing costs, so only if set.
  std::function<void(absl::string_view pass, const std::string& graph)> dump;
  std::vector<PassTime>* times = nullptr;  // appended to
};

absl::Status RunPasses(Graph& graph, const PassOptions& options);

}  // namespace kiln
