// A small graph, x + x over a size that changes, and its import as a daemon and a worker do it.
#pragma once

#include "absl/status/status.h"
#include "compiler/frontend/import.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/verify_graph.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace kiln {

inline constexpr char kAddGraph[] = R"(
  format_version: 1 kind: INFERENCE
  symbols { kind: SYMBOL_INT min: 2 max: 1000 binding { source: INPUT_SIZE } }
  exprs { op: EXPR_SYMBOL }
  inputs { tensor { dtype: F32 device { type: CPU } sizes { expr: 0 } sizes { value: 4 }
                    strides { value: 4 } strides { value: 1 } } }
  nodes { target: "aten.add.Tensor"
          args { name: "self" value { as_tensor: 0 } } args { name: "other" value { as_tensor: 0 } }
          results { dtype: F32 device { type: CPU } sizes { expr: 0 } sizes { value: 4 }
                    strides { value: 4 } strides { value: 1 } } }
  outputs { value: 1 })";

inline v1::Graph AddGraph() {
  v1::Graph graph;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(kAddGraph, &graph));
  return graph;
}

inline absl::Status Import(const v1::Graph& graph, const v1::GraphFacts& facts = {}) {
  absl::StatusOr<CanonicalGraph> canonical = Canonicalize(graph);
  if (!canonical.ok()) return canonical.status();
  absl::StatusOr<Graph> imported = ImportGraph(canonical->bytes, facts);
  if (!imported.ok()) return imported.status();
  return VerifyGraph(*imported);
}

}  // namespace kiln
