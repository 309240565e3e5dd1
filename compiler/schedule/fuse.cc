#include "compiler/schedule/fuse.h"

#include <algorithm>
#include <queue>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "compiler/schedule/can_fuse.h"
#include "compiler/schedule/score_fusion.h"
#include "compiler/schedule/symbol_dependencies.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr size_t kNeighbours = 8;  // that a group of a buffer with many users is tried with

class BitSet {
 public:
  explicit BitSet(size_t size) : words_((size + 63) / 64, 0) {}
  bool Has(size_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  void Set(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  void Clear(size_t i) { words_[i / 64] &= ~(uint64_t{1} << (i % 64)); }
  void Include(const BitSet& other) {
    for (size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }
  template <typename Fn>
  bool Any(Fn fn) const {
    for (size_t w = 0; w < words_.size(); ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        if (fn(w * 64 + static_cast<size_t>(__builtin_ctzll(word)))) return true;
      }
    }
    return false;
  }

 private:
  std::vector<uint64_t> words_;
};

struct Candidate {
  uint32_t a = 0;
  uint32_t b = 0;
  FusionScore score;
};

class Fuser {
 public:
  explicit Fuser(LoopContext& context) : context_(context), graph_(context.graph()) {}

  absl::StatusOr<std::vector<FusedGroup>> Run(const FuseOptions& options) {
    Prepare();
    if (options.fuse) {
      RunRounds();
      if (keeps_members_) {
        members_ = LaunchMembers();
        RunRounds();
      }
      JoinScalars();
    }
    return Order();
  }

 private:
  struct Group {
    bool alive = true;
    bool fusable = false;
    uint32_t version = 0;
    uint32_t last = 0;  // position of its last node
    FusedGroup content;
    GroupFootprint footprint;
  };

  void Prepare() {
    size_t count = graph_.nodes.size();
    users_.resize(graph_.buffers.size());
    outputs_.assign(graph_.buffers.size(), 0);
    for (const LoopGraphOutput& output : graph_.outputs) {
      if (output.kind == LoopGraphOutput::Kind::kView) outputs_[output.view.buffer] = 1;
    }
    ancestors_.assign(count, BitSet(count));
    edges_.resize(count);
    for (uint32_t n = 0; n < count; ++n) {
      Group group;
      group.last = n;
      group.content.node = n;
      keeps_members_ = keeps_members_ && graph_.nodes[n].kind == LoopGraphNode::Kind::kLoops;
      if (graph_.nodes[n].kind == LoopGraphNode::Kind::kLoops) {
        group.content.loops = true;
        group.content.draft = MakeDraft(context_, n);
        group.footprint = FootprintOf(group.content.draft);
        group.fusable = !graph_.nodes[n].loops.ordered;
      }
      groups_.push_back(std::move(group));
      group_of_.push_back(n);
    }
    FindEdges();
  }

  void FindEdges() {
    struct Memory {
      int64_t writer = -1;
      std::vector<uint32_t> readers;
    };
    std::vector<Memory> memory(graph_.buffers.size());
    SymbolDependencies symbols(graph_);
    int64_t last_draw = -1;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      NodeAccess access = AccessOf(graph_.nodes[n]);
      auto depend = [&](int64_t on) {
        if (on < 0 || on == n) return;
        edges_[n].push_back(static_cast<uint32_t>(on));
        ancestors_[n].Set(static_cast<size_t>(on));
        ancestors_[n].Include(ancestors_[on]);
      };
      if (graph_.nodes[n].kind == LoopGraphNode::Kind::kCall && graph_.nodes[n].call.draws) {
        depend(last_draw);
        last_draw = n;
      }
      for (BufferId b : access.reads) {
        Memory& m = memory[context_.MemoryOf(b)];
        depend(m.writer);
        m.readers.push_back(n);
        users_[b].push_back(n);
      }
      for (BufferId b : access.writes) {
        Memory& m = memory[context_.MemoryOf(b)];
        depend(m.writer);
        for (uint32_t reader : m.readers) depend(reader);
        users_[b].push_back(n);
      }
      for (BufferId b : access.writes) {
        Memory& m = memory[context_.MemoryOf(b)];
        m.writer = n;
        m.readers.clear();
      }
      symbols.Visit(n, access, depend);
    }
  }

  void RunRounds() {
    for (int round = 0; round < kFusionRoundsMax && RunRound(); ++round) {
    }
  }

  bool RunRound() {
    std::vector<Candidate> candidates = Candidates();
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& p, const Candidate& q) { return q.score < p.score; });
    bool changed = false;
    for (const Candidate& candidate : candidates) {
      uint32_t a = group_of_[candidate.a];
      uint32_t b = group_of_[candidate.b];
      if (a != b && Attempt(a, b)) changed = true;
    }
    return changed;
  }

  std::vector<Candidate> Candidates() {
    std::vector<Candidate> candidates;
    absl::flat_hash_set<std::pair<uint32_t, uint32_t>> seen;
    for (BufferId buffer = 0; buffer < users_.size(); ++buffer) {
      std::vector<uint32_t> groups;
      for (uint32_t n : users_[buffer]) {
        if (groups_[group_of_[n]].fusable) groups.push_back(group_of_[n]);
      }
      std::sort(groups.begin(), groups.end());
      groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
      size_t reach = groups.size() > kFusionUsersMax ? kNeighbours : groups.size();
      for (size_t i = 0; i < groups.size(); ++i) {
        for (size_t j = i + 1; j < groups.size() && j <= i + reach; ++j) {
          uint32_t a = groups[i];
          uint32_t b = groups[j];
          if (!seen.insert({a, b}).second || Failed(a, b)) continue;
          FusionScore score = ScoreFusion(context_, groups_[a].footprint, groups_[b].footprint);
          if (score.category == 0 && !cost::PaysFusingReaders(-score.proximity)) continue;
          if (StayApart(a, b, score)) continue;
          candidates.push_back({a, b, score});
        }
      }
    }
    return candidates;
  }

  uint64_t VersionKey(uint32_t g) const { return (uint64_t{g} << 24) | groups_[g].version; }
  bool Failed(uint32_t a, uint32_t b) const {
    return failed_.contains({VersionKey(std::min(a, b)), VersionKey(std::max(a, b))});
  }

  bool Vanishes(BufferId buffer, uint32_t a, uint32_t b) const {
    if (graph_.buffers[buffer].kind == LoopBuffer::Kind::kInput || outputs_[buffer]) return false;
    for (uint32_t n : users_[buffer]) {
      if (group_of_[n] != a && group_of_[n] != b) return false;
    }
    return true;
  }

  bool Attempt(uint32_t a, uint32_t b) {
    if (Failed(a, b)) return false;
    if (ancestors_[a].Has(b)) {
      std::swap(a, b);
    } else if (!ancestors_[b].Has(a) && groups_[b].footprint.first < groups_[a].footprint.first) {
      std::swap(a, b);
    }
    bool cycle = ancestors_[b].Any([&](size_t x) { return x != a && ancestors_[x].Has(a); });
    std::optional<FusedDraft> fused;
    if (!cycle) {
      fused = TryFuse(context_, groups_[a].content.draft, groups_[b].content.draft, limits_,
                      [&](BufferId buffer) { return Vanishes(buffer, a, b); });
    }
    if (!fused) {
      // A cycle stays one as long as both groups are what they are.
      failed_.insert({VersionKey(std::min(a, b)), VersionKey(std::max(a, b))});
      return false;
    }
    Commit(a, b, std::move(fused->draft));
    return true;
  }

  // Kernels of a single point do nothing but cost a launch: independent ones become one.
  void JoinScalars() {
    if (keeps_members_) members_ = LaunchMembers();
    const auto joins = [&](uint32_t g) { return IsScalar(g) && (members_.empty() || members_[g] == 0); };
    for (uint32_t a = 0; a < groups_.size(); ++a) {
      if (!joins(a)) continue;
      for (uint32_t b = a + 1; b < groups_.size(); ++b) {
        if (!joins(b) || ancestors_[b].Has(a) || ancestors_[a].Has(b)) continue;
        std::optional<FusedDraft> fused =
            JoinIndependent(context_, groups_[a].content.draft, groups_[b].content.draft, limits_);
        if (fused) Commit(a, b, std::move(fused->draft));
      }
    }
  }

  bool IsScalar(uint32_t g) const {
    const Group& group = groups_[g];
    return group.alive && group.fusable && group.content.draft.outer.empty() &&
           group.content.draft.classes.empty();
  }

  // By group: those that compute the same as many others (an optimizer's work on each parameter, its counts
  // of steps), to become members of one launch.
  std::vector<char> LaunchMembers() const {
    std::vector<char> members(groups_.size(), 0);
    absl::flat_hash_map<std::string, std::vector<uint32_t>> alike;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].alive && groups_[g].fusable) alike[OperatorsOf(g)].push_back(g);
    }
    for (const auto& [operators, equal] : alike) {
      if (!cost::PaysSharedLaunch(equal.size())) continue;
      for (uint32_t g : equal) members[g] = 1;
    }
    return members;
  }

  // Two of them that share too little for a kernel of both.
  bool StayApart(uint32_t a, uint32_t b, const FusionScore& score) const {
    if (!keeps_members_ || score.category != 0 || cost::PaysFusingMembers(score.bytes)) return false;
    if (!members_.empty() && (members_[a] == 0 || members_[b] == 0)) return false;
    return OperatorsOf(a) == OperatorsOf(b);
  }

  // What a group computes, whatever of.
  std::string OperatorsOf(uint32_t g) const {
    std::string text;
    for (const DraftOp& op : groups_[g].content.draft.ops) {
      absl::StrAppend(&text, static_cast<int>(op.data.op), ".", static_cast<int>(op.data.dtype), ".",
                      op.data.bits, " ");
    }
    return text;
  }

  void Commit(uint32_t a, uint32_t b, Draft draft) {
    Group& into = groups_[a];
    into.content.draft = std::move(draft);
    into.footprint = FootprintOf(into.content.draft);
    into.last = std::max(into.last, groups_[b].last);
    ++into.version;
    groups_[b].alive = false;
    groups_[b].content.draft = Draft();
    for (uint32_t n : into.content.draft.nodes) group_of_[n] = a;
    ancestors_[a].Include(ancestors_[b]);
    ancestors_[a].Clear(a);
    ancestors_[a].Clear(b);
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      if (!groups_[g].alive || g == a || !(ancestors_[g].Has(a) || ancestors_[g].Has(b))) continue;
      ancestors_[g].Include(ancestors_[a]);
      ancestors_[g].Set(a);
      ancestors_[g].Clear(b);
    }
  }

  // The position of a group in the order. Loops that nothing waits for (a mask that the backward reads,
  // traced at the graph's end) go where the others have read their operands, if that frees more memory than
  // they fill.
  uint32_t PositionOf(uint32_t g, bool awaited) {
    const Group& group = groups_[g];
    if (awaited || !group.content.loops || group.last != group.content.node) return group.last;
    const NodeAccess access = AccessOf(graph_.nodes[group.content.node]);
    uint32_t after = 0;
    int64_t freed = 0, filled = 0;
    for (BufferId b : access.writes) filled += context_.EstimateBytes(b);
    for (BufferId b : access.reads) {
      for (uint32_t user : users_[b]) {
        if (group_of_[user] != g) after = std::max(after, groups_[group_of_[user]].last);
      }
      const bool own = graph_.buffers[b].kind != LoopBuffer::Kind::kInput;
      if (own && outputs_[b] == 0) freed += context_.EstimateBytes(b);
    }
    return freed > filled ? std::min(after, group.last) : group.last;
  }

  absl::StatusOr<std::vector<FusedGroup>> Order() {
    size_t count = groups_.size();
    std::vector<absl::flat_hash_set<uint32_t>> successors(count);
    std::vector<size_t> waiting(count, 0);
    for (uint32_t n = 0; n < count; ++n) {
      for (uint32_t on : edges_[n]) {
        uint32_t from = group_of_[on];
        uint32_t to = group_of_[n];
        if (from != to && successors[from].insert(to).second) ++waiting[to];
      }
    }
    using Entry = std::pair<uint32_t, uint32_t>;  // position, group
    std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> ready;
    const auto push = [&](uint32_t g) { ready.push({PositionOf(g, !successors[g].empty()), g}); };
    size_t alive = 0;
    for (uint32_t g = 0; g < count; ++g) {
      if (!groups_[g].alive) continue;
      ++alive;
      if (waiting[g] == 0) push(g);
    }
    std::vector<FusedGroup> order;
    while (!ready.empty()) {
      uint32_t g = ready.top().second;
      ready.pop();
      order.push_back(std::move(groups_[g].content));
      for (uint32_t next : successors[g]) {
        if (--waiting[next] == 0) push(next);
      }
    }
    if (order.size() != alive) return absl::InternalError("fusion closed a cycle");
    return order;
  }

  LoopContext& context_;
  LoopGraph& graph_;
  FusionLimits limits_;
  std::vector<Group> groups_;
  std::vector<uint32_t> group_of_;            // by node
  std::vector<std::vector<uint32_t>> users_;  // nodes, by buffer
  std::vector<char> outputs_;                 // by buffer
  std::vector<BitSet> ancestors_;             // by group
  std::vector<std::vector<uint32_t>> edges_;  // nodes that a node waits for
  absl::flat_hash_set<std::pair<uint64_t, uint64_t>> failed_;
  // Library calls would lie between the members of a launch: a graph with any keeps none apart.
  bool keeps_members_ = true;
  std::vector<char> members_;  // by group; empty: not known yet, all that are alike may be
};

}  // namespace

NodeAccess AccessOf(const LoopGraphNode& node) {
  NodeAccess access;
  auto add = [](std::vector<BufferId>* list, BufferId buffer) {
    if (std::find(list->begin(), list->end(), buffer) == list->end()) list->push_back(buffer);
  };
  switch (node.kind) {
    case LoopGraphNode::Kind::kLoops:
      for (LoopOpId id = 0; id < node.loops.body.size(); ++id) {
        const LoopOpData& op = node.loops.body.op(id);
        if (op.op == LoopOpcode::kLoad) add(&access.reads, op.buffer);
        if (op.op != LoopOpcode::kStore) continue;
        add(&access.writes, op.buffer);
        if (op.mode == v1::STORE_ACCUMULATE) add(&access.reads, op.buffer);
      }
      break;
    case LoopGraphNode::Kind::kCall:
      for (const BufferView& view : node.call.tensors) {
        add(&access.reads, view.buffer);
        if (node.call.mutates_arguments) add(&access.writes, view.buffer);
      }
      for (int64_t result : node.call.results) {
        if (result >= 0) add(&access.writes, static_cast<BufferId>(result));
      }
      break;
    case LoopGraphNode::Kind::kSeeds: add(&access.writes, node.seeds.buffer); break;
    case LoopGraphNode::Kind::kLet:
      if (!node.let.number) add(&access.reads, node.let.item.buffer);
      break;
    case LoopGraphNode::Kind::kCheck: break;
  }
  return access;
}

absl::StatusOr<std::vector<FusedGroup>> FuseLoops(LoopContext& context, const FuseOptions& options) {
  return Fuser(context).Run(options);
}

}  // namespace kiln
