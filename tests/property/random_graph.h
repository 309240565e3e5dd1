// Random ATen graphs with their right answers: pointwise, reductions, views, broadcasts, cat, gathers,
// gemms, normalisations, mutated inputs; some dimensions symbolic. The reference
// evaluates each node by itself, in double, on dense arrays, and shares no code with the compiler.
//
// Deterministic by seed. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kiln/v1/graph.pb.h"

namespace kiln::testing {

struct RandomTensor {
  v1::DType dtype = v1::F32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  std::vector<double> data;  // row-major by sizes
};

struct RandomGraph {
  v1::Graph graph;
  v1::GraphFacts facts;
  v1::Hints hints;
  std::vector<RandomTensor> inputs;
  std::vector<RandomTensor> outputs;
  std::map<size_t, RandomTensor> mutated;  // by input: its contents afterwards
};

struct RandomGraphOptions {
  int nodes = 12;
  bool symbolic = false;
  bool mutation = false;
  v1::DeviceType device = v1::CPU;
  v1::DType dtype = v1::F32;  // of all floats; F16 and BF16 as well
  // The right answers have each node's results rounded to `dtype`, as a program of one kernel a node has: the
  // distance from those without is what rounding may do.
  bool round_each_node = false;
};

// The graph differs by `round_each_node` only where a node's numbers are at the limit of what it takes.
RandomGraph MakeRandomGraph(uint64_t seed, const RandomGraphOptions& options);

}  // namespace kiln::testing
