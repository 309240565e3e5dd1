// Windows that move over the last two dimensions: of pooling and of convolutions, as loops.
//
// Pure functions on a LoweringContext, which keeps their errors.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/library/sliding_window.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

// Reads an argument of two numbers, one of which stands for both; left alone when it is absent.
void ReadPair(LoweringContext& context, const GraphNode& node, absl::string_view name, int64_t (&pair)[2]);

// Row and column in `self` of the window element `inner` of the result's element `index`, and whether it is
// inside the image.
struct WindowPoint {
  std::vector<ExprId> from;
  LoopOpId inside;
};

WindowPoint PointOf(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& self,
                    const Window& window, Index index, Index inner);

}  // namespace kiln
