// A convolution, or the gradients of one, in one description.
//
// ConvolutionOf reads a node; what a convolution is (a gemm over channels, patches, a window for each
// channel) is asked here and nowhere else. Passes, lowering and what describes a program's calls for
// measuring name its operands by the constants below.
//
// Pure functions. Errors: none. A node that lacks an operand has no description. Only what is provable
// counts: with symbolic sizes an answer may be false where it could be true.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/library/sliding_window.h"

namespace kiln {

struct ConvolutionArguments {
  static constexpr char kInput[] = "input", kWeight[] = "weight", kBias[] = "bias",
                        kGradient[] = "grad_output";
  static constexpr char kStride[] = "stride", kPadding[] = "padding", kDilation[] = "dilation",
                        kTransposed[] = "transposed", kGroups[] = "groups", kBiasSizes[] = "bias_sizes";
};

struct Convolution {
  bool gradients = false;  // of input, weight and bias, instead of the result
  ValueId input = kNoValue, weight = kNoValue;
  ValueId bias = kNoValue;                        // kNoValue: none, and for gradients
  ValueId result = kNoValue;                      // kNoValue for gradients
  ValueId gradient = kNoValue;                    // of the result, for gradients
  std::vector<ExprId> stride, padding, dilation;  // one number stands for all dimensions; empty: not given
  bool transposed = false;
  std::optional<int64_t> groups;  // no value: not known

  bool is_ungrouped() const { return groups == 1 && !transposed; }
};

// The convolution itself, or its gradients.
bool IsConvolution(const OperatorName& target);
std::optional<Convolution> ConvolutionOf(const Graph& graph, const GraphNode& node);

// ---- questions about a convolution

// Image and weight have rows and columns.
bool IsOfImages(const Graph& graph, const Convolution& convolution);
// Over the last two dimensions. No value where a number beside the kernel's is not known, or there are more
// than two.
std::optional<Window> WindowOf(const Graph& graph, const Convolution& convolution);
// Of images, no gradient: each point of the result is made of one of the image, so that it is a gemm over the
// channels. A bias is one number a channel.
bool IsConv1x1(const Graph& graph, const Convolution& convolution);
// Input, weight, bias and result have this dtype.
bool IsAllOf(const Graph& graph, const Convolution& convolution, v1::DType dtype);
// cuDNN convolves numbers of the dtype, as the runtime calls it: best channels-last.
bool CudnnConvolves(v1::DType dtype);
// Of images: each channel has a window of its own. Gradients too.
bool IsDepthwise(const Graph& graph, const Convolution& convolution);
// A depthwise convolution, no gradient, of floating-point numbers, whose window is known.
bool IsWindowPerChannel(const Graph& graph, const Convolution& convolution);

// ---- nodes that are convolutions

// The same without its bias; with a stride of one.
GraphNode WithoutBias(const GraphNode& node);
GraphNode WithUnitStride(ExprPool& exprs, const GraphNode& node);
// The arguments of a depthwise convolution's gradients for some of its channels, so many, whose operands
// these are.
std::vector<std::pair<std::string, Argument>> ArgumentsOfChannels(ExprPool& exprs, const GraphNode& node,
                                                                  ValueId gradient, ValueId input,
                                                                  ValueId weight, int64_t channels);

}  // namespace kiln
