// The canonical bytes of a graph: protobuf wire bytes of v1::Graph in normal form (graph.proto's head
// says which). The client writes them, the daemon hashes them, the worker refuses anything else.
//
// Normal form: expressions that are used, each once, before its first user and numbered by first
// use; symbols that are used, numbered by first use; a constant size is a literal; a zero storage
// offset is absent; no unknown field. Values are numbered by position and need no renaming.
//
// Threads: pure functions. Errors: INVALID_ARGUMENT for a graph that names what does not exist.
// Limits: the input message bounds all work: linear in its size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/graph.pb.h"

namespace kiln {

struct CanonicalGraph {
  std::string bytes;
  // By canonical symbol: its index in the graph that was given. Hints follow the canonical order.
  std::vector<uint32_t> symbols;
};

absl::StatusOr<CanonicalGraph> Canonicalize(const v1::Graph& graph);

// The message, if `bytes` are exactly what `Canonicalize` writes for it. INVALID_ARGUMENT otherwise.
absl::StatusOr<v1::Graph> ParseCanonical(absl::string_view bytes);
absl::Status CheckCanonical(absl::string_view bytes);

// `hints` in the order of the given graph to canonical order. INVALID_ARGUMENT for another length.
absl::StatusOr<v1::Hints> CanonicalHints(const CanonicalGraph& canonical, const v1::Hints& hints);

}  // namespace kiln
