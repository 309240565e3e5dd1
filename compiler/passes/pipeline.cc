#include "compiler/passes/pipeline.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/verify_graph.h"
#include "compiler/passes/algebra.h"
#include "compiler/passes/channel_moments.h"
#include "compiler/passes/check_dtypes.h"
#include "compiler/passes/check_numbers.h"
#include "compiler/passes/common_subexpressions.h"
#include "compiler/passes/conv1x1_to_gemm.h"
#include "compiler/passes/dead_code.h"
#include "compiler/passes/decompose.h"
#include "compiler/passes/expand_foreach.h"
#include "compiler/passes/fold_constants.h"
#include "compiler/passes/fuse_activation.h"
#include "compiler/passes/fuse_bias.h"
#include "compiler/passes/gemm_to_onednn.h"
#include "compiler/passes/library_nodes.h"
#include "compiler/passes/pad_gemm_rows.h"
#include "compiler/passes/pinned_layouts.h"
#include "compiler/passes/prefer_channels_last.h"
#include "compiler/passes/remove_no_ops.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

// Runs passes one after the other with what is common to all: clock, verifier, dump.
class Runner {
 public:
  Runner(Graph& graph, const PassOptions& options) : graph_(graph), options_(options) {
    if (options_.dump) text_ = graph_.ToString();
  }

  template <typename Pass>
  absl::Status Run(absl::string_view name, Pass pass) {
    const absl::Time start = absl::Now();
    KILN_RETURN_IF_ERROR(StatusWrap(pass(graph_), name));
    if (options_.times != nullptr) options_.times->push_back({std::string(name), absl::Now() - start});
    if (absl::Status valid = VerifyGraph(graph_); !valid.ok()) {
      return absl::InternalError(absl::StrCat("pass ", name, " broke the graph: ", valid.message()));
    }
    if (options_.dump) {
      std::string text = graph_.ToString();
      if (text != text_) options_.dump(name, text);
      text_ = std::move(text);
    }
    return absl::OkStatus();
  }

 private:
  Graph& graph_;
  const PassOptions& options_;
  std::string text_;
};

}  // namespace

absl::Status RunPasses(Graph& graph, const PassOptions& options) {
  graph.draws_in_order = options.fallback_random;
  Runner runner(graph, options);
  RelateOutputs(graph);
  // Before anything is expanded: a captured graph has dead nodes and repeated views.
  KILN_RETURN_IF_ERROR(runner.Run("expand_foreach", ExpandForeach));
  KILN_RETURN_IF_ERROR(runner.Run("dead_code", RemoveDeadCode));
  // What decompositions make of numbers is exempt; these two know operators by ATen's names.
  KILN_RETURN_IF_ERROR(runner.Run("check_numbers", CheckNumbers));
  KILN_RETURN_IF_ERROR(runner.Run("check_dtypes", [](Graph& g) { return CheckDTypes(g); }));
  KILN_RETURN_IF_ERROR(runner.Run("library_nodes", [](Graph& g) {
    MakeLibraryNodes(g);
    return absl::OkStatus();
  }));
  KILN_RETURN_IF_ERROR(runner.Run(
      "decompose", [&](Graph& g) { return Decompose(g, {options.fallback_random, options.machine}); }));
  // From here on there are core operators, library nodes and library calls only.
  KILN_RETURN_IF_ERROR(runner.Run("remove_no_ops", RemoveNoOps));
  KILN_RETURN_IF_ERROR(runner.Run("fold_constants", FoldConstants));
  KILN_RETURN_IF_ERROR(runner.Run("algebra", SimplifyAlgebra));
  KILN_RETURN_IF_ERROR(runner.Run("common_subexpressions", MergeCommonSubexpressions));
  // Merged views have made more of them the identity.
  KILN_RETURN_IF_ERROR(runner.Run("remove_no_ops", RemoveNoOps));
  KILN_RETURN_IF_ERROR(runner.Run("fuse_bias", FuseBias));
  KILN_RETURN_IF_ERROR(
      runner.Run("pad_gemm_rows", [&](Graph& g) { return PadGemmRows(g, options.machine); }));
  // What is cut from a padded gemm is activated where it is read.
  KILN_RETURN_IF_ERROR(
      runner.Run("fuse_activation", [&](Graph& g) { return FuseActivation(g, options.machine); }));
  bool chose_channels_last = false;
  if (!options.keep_traced_layout) {
    KILN_RETURN_IF_ERROR(runner.Run("prefer_channels_last", [&](Graph& g) {
      chose_channels_last = PreferChannelsLast(g, options.machine);
      return absl::OkStatus();
    }));
  }
  if (options.chose_channels_last != nullptr) *options.chose_channels_last = chose_channels_last;
  KILN_RETURN_IF_ERROR(
      runner.Run("channel_moments", [&](Graph& g) { return CombineChannelMoments(g, options.machine); }));
  KILN_RETURN_IF_ERROR(
      runner.Run("conv1x1_to_gemm", [&](Graph& g) { return Conv1x1ToGemm(g, options.machine); }));
  // Nothing after this knows the gemm any more.
  if (cost::PaysOnednn(options.machine))
    KILN_RETURN_IF_ERROR(
        runner.Run("gemm_to_onednn", [&](Graph& g) { return GemmToOnednn(g, options.machine); }));
  return absl::OkStatus();
}

}  // namespace kiln
