#include "compiler/schedule/score_fusion.h"

#include <algorithm>

namespace kiln {
namespace {

int64_t CommonBytes(LoopContext& context, const std::vector<BufferId>& a, const std::vector<BufferId>& b) {
  int64_t bytes = 0;
  auto i = a.begin();
  auto j = b.begin();
  while (i != a.end() && j != b.end()) {
    if (*i < *j) {
      ++i;
    } else if (*j < *i) {
      ++j;
    } else {
      bytes += context.EstimateBytes(*i);
      ++i;
      ++j;
    }
  }
  return bytes;
}

void SortUnique(std::vector<BufferId>* ids) {
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

}  // namespace

GroupFootprint FootprintOf(const Draft& draft) {
  GroupFootprint footprint;
  for (const DraftOp& op : draft.ops) {
    if (op.data.op == LoopOpcode::kLoad) footprint.reads.push_back(op.data.buffer);
    if (op.data.op == LoopOpcode::kStore) footprint.writes.push_back(op.data.buffer);
  }
  SortUnique(&footprint.reads);
  SortUnique(&footprint.writes);
  footprint.first = draft.nodes.front();
  footprint.last = draft.nodes.back();
  return footprint;
}

FusionScore ScoreFusion(LoopContext& context, const GroupFootprint& a, const GroupFootprint& b) {
  FusionScore score;
  int64_t forwarded = CommonBytes(context, a.writes, b.reads) + CommonBytes(context, b.writes, a.reads);
  score.category = forwarded > 0 ? 1 : 0;
  score.bytes = forwarded + CommonBytes(context, a.reads, b.reads);
  int64_t gap = static_cast<int64_t>(std::max(a.first, b.first)) - std::min(a.last, b.last);
  score.proximity = -std::max<int64_t>(gap, 0);
  return score;
}

}  // namespace kiln
