#include "compiler/schedule/align.h"

#include <algorithm>

namespace kiln {
namespace {

struct Side {
  std::vector<LoopVar> vars;
  std::vector<std::optional<ExprId>> factors;
  std::vector<char> matched;
};

Side MakeSide(LoopContext& context, const std::vector<LoopVar>& vars, ExprId index) {
  Side side;
  side.vars = vars;
  side.matched.assign(vars.size(), 0);
  for (const LoopVar& var : vars) side.factors.push_back(context.Coefficient(index, var.leaf));
  return side;
}

bool IsZero(LoopContext& context, const std::optional<ExprId>& factor) {
  return factor && context.pool().AsConst(*factor) == 0;
}

bool Leads(LoopContext& context, const Side& side, size_t i) {
  return !side.matched[i] && side.factors[i] && !IsZero(context, side.factors[i]);
}

// Unmatched loops of `side` whose factors nest to one loop of `extent` with `factor`, outermost first.
std::vector<size_t> FindChain(LoopContext& context, const Side& side, ExprId extent, ExprId factor) {
  std::vector<size_t> chain;
  ExprId covered = context.pool().Const(1);
  ExprId next = factor;
  while (!context.Equal(covered, extent)) {
    bool found = false;
    for (size_t j = 0; j < side.vars.size() && !found; ++j) {
      if (!Leads(context, side, j) || std::find(chain.begin(), chain.end(), j) != chain.end()) continue;
      if (!context.Equal(*side.factors[j], next)) continue;
      chain.insert(chain.begin(), j);
      covered = context.pool().Mul(covered, side.vars[j].extent);
      next = context.pool().Mul(factor, covered);
      found = true;
    }
    if (!found) return {};
  }
  return chain;
}

// The one loop that stands for nested `vars`, outermost first.
ExprId Flatten(LoopContext& context, const std::vector<LoopVar>& vars) {
  ExprId flat = vars[0].leaf;
  for (size_t k = 1; k < vars.size(); ++k) {
    flat = context.pool().Add(context.pool().Mul(flat, vars[k].extent), vars[k].leaf);
  }
  return flat;
}

class Matcher {
 public:
  Matcher(LoopContext& context, Side x, Side y) : context_(context), x_(std::move(x)), y_(std::move(y)) {
    match_.y_loops.resize(y_.vars.size());
  }

  std::optional<LoopMatch> Run() {
    MatchEqual();
    MatchChains();
    MatchRest();
    for (char matched : x_.matched) {
      if (!matched) return std::nullopt;
    }
    for (char matched : y_.matched) {
      if (!matched) return std::nullopt;
    }
    return std::move(match_);
  }

 private:
  void Pair(size_t i, size_t j) {
    x_.matched[i] = y_.matched[j] = 1;
    if (x_.vars[i].leaf != y_.vars[j].leaf) match_.x[x_.vars[i].leaf] = y_.vars[j].leaf;
    match_.y_loops[j] = {y_.vars[j]};
  }

  void MatchEqual() {
    for (size_t i = 0; i < x_.vars.size(); ++i) {
      if (!Leads(context_, x_, i)) continue;
      for (size_t j = 0; j < y_.vars.size(); ++j) {
        if (!Leads(context_, y_, j) || !context_.Equal(x_.vars[i].extent, y_.vars[j].extent) ||
            !context_.Equal(*x_.factors[i], *y_.factors[j])) {
          continue;
        }
        Pair(i, j);
        break;
      }
    }
  }

  void MatchChains() {
    for (size_t i = 0; i < x_.vars.size(); ++i) {
      if (!Leads(context_, x_, i)) continue;
      std::vector<size_t> chain = FindChain(context_, y_, x_.vars[i].extent, *x_.factors[i]);
      if (chain.empty()) continue;
      std::vector<LoopVar> vars;
      for (size_t j : chain) {
        vars.push_back(y_.vars[j]);
        y_.matched[j] = 1;
        match_.y_loops[j] = {y_.vars[j]};
      }
      x_.matched[i] = 1;
      match_.x[x_.vars[i].leaf] = Flatten(context_, vars);
    }
    for (size_t j = 0; j < y_.vars.size(); ++j) {
      if (!Leads(context_, y_, j)) continue;
      std::vector<size_t> chain = FindChain(context_, x_, y_.vars[j].extent, *y_.factors[j]);
      if (chain.empty()) continue;
      std::vector<LoopVar> vars;
      for (size_t i : chain) {
        vars.push_back(x_.vars[i]);
        x_.matched[i] = 1;
      }
      y_.matched[j] = 1;
      match_.y[y_.vars[j].leaf] = Flatten(context_, vars);
      match_.y_loops[j] = std::move(vars);
    }
  }

  void MatchRest() {
    for (size_t i = 0; i < x_.vars.size(); ++i) {
      if (x_.matched[i]) continue;
      for (size_t j = 0; j < y_.vars.size(); ++j) {
        if (y_.matched[j] || !context_.Equal(x_.vars[i].extent, y_.vars[j].extent)) continue;
        if (IsZero(context_, x_.factors[i]) != IsZero(context_, y_.factors[j])) continue;
        Pair(i, j);
        break;
      }
    }
  }

  LoopContext& context_;
  Side x_;
  Side y_;
  LoopMatch match_;
};

std::vector<LoopVar> Concat(const std::vector<LoopVar>& a, const std::vector<LoopVar>& b) {
  std::vector<LoopVar> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

void ApplyLoops(const LoopMatch& match, size_t begin, std::vector<LoopVar>* vars) {
  std::vector<LoopVar> result;
  for (size_t k = 0; k < vars->size(); ++k) {
    const std::vector<LoopVar>& loops = match.y_loops[begin + k];
    result.insert(result.end(), loops.begin(), loops.end());
  }
  *vars = std::move(result);
}

// `flat` is pointwise and runs over the outer loops of `shape` and those of its class `cls`.
std::optional<LoopMatch> MatchToClass(LoopContext& context, const Draft& flat, ExprId flat_index,
                                      const Draft& shape, ExprId shape_index, size_t cls) {
  return MatchLoops(context, flat.outer, flat_index, Concat(shape.outer, shape.classes[cls].vars),
                    shape_index);
}

void Reshape(LoopContext& context, const LoopMatch& match, size_t cls, Draft* flat, Draft* shape) {
  SubstituteVars(context, *flat, match.x);
  SubstituteVars(context, *shape, match.y);
  size_t outer = shape->outer.size();
  ApplyLoops(match, outer, &shape->classes[cls].vars);
  ApplyLoops(match, 0, &shape->outer);
  flat->outer = shape->outer;
  flat->classes = shape->classes;
  AssignClass(context, *flat, static_cast<int>(cls));
}

// Class `k` of `a` and class `l` of `b` have one domain: `b` takes over the variables of `a`.
bool UnifyClass(LoopContext& context, Draft* a, size_t k, Draft* b, size_t l) {
  if (a->classes[k].ordered || b->classes[l].ordered) return false;
  std::vector<DraftAccess> a_accesses = Accesses(*a);
  std::vector<DraftAccess> b_accesses = Accesses(*b);
  int attempts = 0;
  for (const DraftAccess& x : b_accesses) {
    if (x.cls != static_cast<int>(l) || context.HasIndirect(x.index)) continue;
    for (const DraftAccess& y : a_accesses) {
      if (y.cls != static_cast<int>(k) || y.buffer != x.buffer || context.HasIndirect(y.index)) continue;
      if (++attempts > 8) return false;
      auto match = MatchLoops(context, b->classes[l].vars, x.index, a->classes[k].vars, y.index);
      if (!match) continue;
      SubstituteVars(context, *b, match->x);
      SubstituteVars(context, *a, match->y);
      ApplyLoops(*match, 0, &a->classes[k].vars);
      return true;
    }
  }
  // No common buffer: equal loops in the same order are the same loops.
  const std::vector<LoopVar>& av = a->classes[k].vars;
  const std::vector<LoopVar>& bv = b->classes[l].vars;
  if (av.size() != bv.size()) return false;
  LeafMap replacement;
  for (size_t i = 0; i < av.size(); ++i) {
    if (!context.Equal(av[i].extent, bv[i].extent)) return false;
    replacement[bv[i].leaf] = av[i].leaf;
  }
  SubstituteVars(context, *b, replacement);
  return true;
}

// Gives both drafts one list of classes.
void MergeClasses(LoopContext& context, Draft* a, Draft* b) {
  std::vector<int> renumbered(b->classes.size(), -1);
  std::vector<char> taken(a->classes.size(), 0);
  size_t a_count = a->classes.size();
  for (size_t l = 0; l < b->classes.size(); ++l) {
    for (size_t k = 0; k < a_count && renumbered[l] < 0; ++k) {
      if (taken[k] || !UnifyClass(context, a, k, b, l)) continue;
      taken[k] = 1;
      renumbered[l] = static_cast<int>(k);
    }
    if (renumbered[l] < 0) {
      renumbered[l] = static_cast<int>(a->classes.size());
      a->classes.push_back(b->classes[l]);
    }
  }
  for (DraftOp& op : b->ops) {
    if (op.cls != kOuterClass) op.cls = renumbered[op.cls];
  }
  b->classes = a->classes;
}

}  // namespace

std::optional<LoopMatch> MatchLoops(LoopContext& context, const std::vector<LoopVar>& x, ExprId x_index,
                                    const std::vector<LoopVar>& y, ExprId y_index) {
  return Matcher(context, MakeSide(context, x, x_index), MakeSide(context, y, y_index)).Run();
}

std::optional<AlignedPair> AlignDrafts(LoopContext& context, const Draft& a, const DraftAccess& a_access,
                                       const Draft& b, const DraftAccess& b_access) {
  // Equal outer loops, in any order.
  if (auto match = MatchLoops(context, b.outer, b_access.index, a.outer, a_access.index)) {
    AlignedPair pair{a, b};
    SubstituteVars(context, pair.second, match->x);
    SubstituteVars(context, pair.first, match->y);
    ApplyLoops(*match, 0, &pair.first.outer);
    pair.second.outer = pair.first.outer;
    MergeClasses(context, &pair.first, &pair.second);
    return pair;
  }
  // A pointwise draft takes the shape of one with inner loops.
  if (b.classes.empty() && a_access.cls != kOuterClass && !a.classes[a_access.cls].ordered) {
    size_t cls = a_access.cls;
    if (auto match = MatchToClass(context, b, b_access.index, a, a_access.index, cls)) {
      AlignedPair pair{a, b};
      Reshape(context, *match, cls, &pair.second, &pair.first);
      return pair;
    }
  }
  if (b.classes.empty() && a_access.cls == kOuterClass) {
    // The access is to a reduction's result: the broadcast loops must be those of a class.
    for (size_t cls = 0; cls < a.classes.size(); ++cls) {
      if (a.classes[cls].ordered) continue;
      if (auto match = MatchToClass(context, b, b_access.index, a, a_access.index, cls)) {
        AlignedPair pair{a, b};
        Reshape(context, *match, cls, &pair.second, &pair.first);
        return pair;
      }
    }
  }
  if (a.classes.empty() && b_access.cls != kOuterClass && !b.classes[b_access.cls].ordered) {
    size_t cls = b_access.cls;
    if (auto match = MatchToClass(context, a, a_access.index, b, b_access.index, cls)) {
      AlignedPair pair{a, b};
      Reshape(context, *match, cls, &pair.first, &pair.second);
      return pair;
    }
  }
  return std::nullopt;
}

}  // namespace kiln
