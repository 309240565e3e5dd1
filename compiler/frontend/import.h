// Canonical bytes to a Graph: the one place where a caller's graph is believed or refused.
//
// Every limit of support/compiler_limits.h holds before memory in proportion to a claim is taken. Import
// checks form, not meaning: it does not know operators, any well-formed overload may become a
// library call.
//
// Threads: pure function. Errors, always the caller's and naming the node ("node 12
// (aten.add.Tensor): …"): INVALID_ARGUMENT for what is malformed, UNIMPLEMENTED ("unsupported: …")
// for what is well formed but not taken.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/graph/graph.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

// `facts` has one entry an input and one an output, or none at all.
absl::StatusOr<Graph> ImportGraph(absl::string_view canonical, const v1::GraphFacts& facts);

}  // namespace kiln
