// Windows that move over the last two dimensions: of pooling and of convolutions.
//
// Pure functions on a LoweringContext, which keeps their errors.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/lower/lowering_context.h"

namespace kiln {

struct Window {
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
};

// Reads an argument of two numbers, one of which stands for both; left alone when it is absent.
void ReadPair(LoweringContext& context, const GraphNode& node, absl::string_view name, int64_t (&pair)[2]);

// Row and column in `self` of the window element `inner` of the result's element `index`, and whether
// it lies in the image.
struct WindowPoint {
  std::vector<ExprId> from;
  LoopOpId inside;
};

WindowPoint PointOf(LoweringContext& context, LoopRecorder& ops, const LoweredTensor& self,
                    const Window& window, Index index, Index inner);

}  // namespace kiln
