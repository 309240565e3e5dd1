// Bringing the loops of two drafts to one iteration space: reordering, splitting flattened loops, and
// turning outer loops of a pointwise draft into the inner loops of a reduction.
//
// Matching is led by an access that both drafts make to one buffer: loops with the same extent and the
// same factor in the index are the same loop; a loop also matches a chain of smaller loops whose factors
// nest (8192 with factor 768 is 64 × 128 with factors 98304 and 768). Loops that the access does not
// depend on are matched by extent, in order.
//
// Threads: one. Errors: none; "no match" is nullopt or false.
#pragma once

#include <optional>
#include <vector>

#include "compiler/schedule/draft.h"

namespace kiln {

// How loops X map onto loops Y: replacements for the variables of either side, and for every loop of Y
// the loops that it became (itself, or the chain that it was split into).
struct LoopMatch {
  LeafMap x;
  LeafMap y;
  std::vector<std::vector<LoopVar>> y_loops;
};

std::optional<LoopMatch> MatchLoops(LoopContext& context, const std::vector<LoopVar>& x, ExprId x_index,
                                    const std::vector<LoopVar>& y, ExprId y_index);

// Copies of two drafts on common outer loops; classes of equal domains are common, too. `first` and
// `second` share class numbers: class k of the merged draft is `classes[k]`.
struct AlignedPair {
  Draft first;
  Draft second;
};

// All alignments that `a` and `b` suggest, led by (`a_access`, `b_access`); at most one is returned.
std::optional<AlignedPair> AlignDrafts(LoopContext& context, const Draft& a, const DraftAccess& a_access,
                                       const Draft& b, const DraftAccess& b_access);

}  // namespace kiln
