// Who computes a gemm, a convolution, attention, and how a library is called: the one seam where that is
// chosen.
//
// Each alternative to the library that ATen takes is a row of a table (choice.cc): what it can compute, and
// whether the cost model says that it pays. The first row that can and pays is taken; where none is, the
// library is. What the library then does on a GPU, by which plan of cuBLASLt or cuDNN, max-autotune measures.
// Passes and lowering rewrite nodes as is chosen here; they themselves see whether the graph around a node
// lets them. Who computes anything else, they ask the cost model.
//
// Pure functions of graph and machine: no hint and no measurement. Errors: none; where a size that matters is
// not known, the library is taken.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/library/attention.h"
#include "compiler/library/convolution.h"
#include "compiler/library/gemm.h"
#include "compiler/target/machine.h"

namespace kiln {

enum class Implementation {
  kLibrary,  // the operator as it stands
  kOnednn,   // a gemm of a CPU, instead of MKL
  kGemm,     // a convolution of single points as one gemm; attention as two and a softmax
  kKernel,   // a loop of our own, which fuses with what follows
  kPatches,  // a convolution of single points over patches of the image: a gemm of the library's
};

Implementation Choose(const Graph& graph, const Gemm& gemm, const Machine& machine);
Implementation Choose(const Graph& graph, const Convolution& convolution, const Machine& machine);
Implementation Choose(const Graph& graph, const Attention& attention, const Machine& machine);

// ---- how the library is called

// It computes the gemm, and does the activation in the gemm's own kernel, as cuBLASLt does.
bool Activates(const Graph& graph, const Gemm& gemm, Gemm::Activation activation, const Machine& machine);
// A gemm's matrices are best padded with zeros to rows of whole 16 bytes. All its sizes are known then.
bool WantsPaddedRows(const Graph& graph, const Gemm& gemm, const Machine& machine);
inline constexpr int64_t kPaddedElements = 8;  // of 16 bits
// Gradients of a convolution, its weight's among them, are best computed by groups of so many channels; no
// value: all at once. `exprs`: the graph's, or made of them.
std::optional<int64_t> ChannelsAtOnce(ExprPool& exprs, const Graph& graph, const Convolution& convolution);

// ---- the layout of a convolution's images

// Weights and their gradients have the layout of images; on a CPU they are row-major.
bool WeightsHaveImageLayout(const Graph& graph, const Convolution& convolution);
// On a CPU in training: as well channels-last as row-major, so that a whole step may be.
bool CanTrainChannelsLastOnCpu(const Graph& graph, const Convolution& convolution);
// The result is best channels-last, if its images may be so at all. No gradients.
bool WantsChannelsLast(const Graph& graph, const Convolution& convolution, const Machine& machine);
// The library computes the gradients channels-last as well as the convolution itself.
bool CanComputeGradientsChannelsLast(const Graph& graph, const Convolution& convolution);
// The gradients, which are the node's results, are best computed channels-last: where they are declared so;
// where their layouts don't tell, where what they are made of has that layout. `exprs` as above.
bool ComputesGradientsChannelsLast(ExprPool& exprs, const Graph& graph, const GraphNode& node,
                                   const Convolution& convolution);

}  // namespace kiln
