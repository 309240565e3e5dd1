// A CUDA graph as a captured stream records it, without CUDA: who waits for whom. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/runtime/capture_dependencies.h"

namespace kiln::runtime {

// A node waits for the nodes of `tail`, and is the next node's tail.
class RecordedGraph : public Capture {
 public:
  bool Get(std::vector<Node>& nodes) override {
    if (!tells) return false;
    nodes = tail_;
    return true;
  }
  bool Set(absl::Span<const Node> nodes) override {
    if (!takes) return false;
    tail_.assign(nodes.begin(), nodes.end());
    return true;
  }
  bool Add(absl::Span<const Node> nodes) override {
    if (!takes) return false;
    for (const Node node : nodes) {
      EXPECT_EQ(std::count(tail_.begin(), tail_.end(), node),
                tells ? 0 : std::count(tail_.begin(), tail_.end(), node));
      tail_.push_back(node);
    }
    return true;
  }

  // The number of the node, from 1.
  size_t Record() {
    std::vector<bool> before(waits_.size() + 1);
    for (const Node node : tail_) {
      const size_t at = reinterpret_cast<uintptr_t>(node);
      before[at] = true;
      for (size_t i = 0; i < waits_[at - 1].size(); ++i) {
        if (waits_[at - 1][i]) before[i] = true;
      }
      ++edges;
    }
    waits_.push_back(before);
    tail_ = {reinterpret_cast<Node>(waits_.size())};
    return waits_.size();
  }
  bool Waits(size_t node, size_t other) const { return waits_[node - 1][other]; }
  size_t nodes() const { return waits_.size(); }

  bool tells = true, takes = true;
  size_t edges = 0;

 private:
  std::vector<std::vector<bool>> waits_;  // by node, for which nodes
  std::vector<Node> tail_;
};

}  // namespace kiln::runtime
