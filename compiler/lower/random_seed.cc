#include "compiler/lower/random_seed.h"

#include <utility>

namespace kiln {

BufferId RandomSeed::Buffer() {
  if (buffer_) return *buffer_;
  const ExprId one = out_.exprs.Const(1);
  buffer_ = out_.AddBuffer(v1::I64, v1::CPU, {one}, {one});
  LoopGraphNode node;
  node.kind = LoopGraphNode::Kind::kSeeds;
  node.seeds.buffer = *buffer_;
  node.seeds.count = 1;
  out_.nodes.push_back(std::move(node));
  return *buffer_;
}

}  // namespace kiln
