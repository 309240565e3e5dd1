#include "compiler/passes/channel_moments.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/passes/graph_builder.h"
#include "compiler/passes/graph_rewrite.h"
#include "compiler/support/divisor.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

constexpr int64_t kBlockMax = 64;  // points: up to where a block's error is small

// What a batch normalisation computes of `image`: sum, mean and the sum of squares about it.
struct Moments {
  ValueId image, sum, mean, squares;
};

struct Sizes {
  int64_t images, channels, rows, columns;
  int64_t block_rows, block_columns;  // of the points that are summed first

  int64_t block() const { return block_rows * block_columns; }
  int64_t blocks() const { return images * rows * columns / block(); }
};

class Combiner {
 public:
  Combiner(Graph& graph, const Machine& machine)
      : graph_(graph),
        machine_(machine),
        producers_(Producers(graph)),
        uses_(UseCounts(graph)),
        nodes_(std::move(graph.nodes)),
        replacement_(IdentityReplacement(graph)) {}

  absl::Status Run() {
    std::vector<Moments> found(nodes_.size());
    std::vector<bool> starts(nodes_.size(), false), dropped(nodes_.size(), false);
    for (const GraphNode& node : nodes_) {
      const std::optional<Moments> moments = Find(node);
      if (!moments || starts[producers_[moments->sum]]) continue;
      found[producers_[moments->sum]] = *moments;
      starts[producers_[moments->sum]] = true;
      for (ValueId value : {moments->sum, moments->mean, moments->squares}) dropped[producers_[value]] = true;
    }
    graph_.nodes.clear();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (starts[i]) KILN_RETURN_IF_ERROR(Emit(found[i], nodes_[i].origin));
      if (!dropped[i]) graph_.nodes.push_back(std::move(nodes_[i]));
    }
    for (size_t v = replacement_.size(); v < graph_.values.size(); ++v)
      replacement_.push_back(static_cast<ValueId>(v));
    ReplaceUses(graph_, replacement_);
    return absl::OkStatus();
  }

 private:
  const GraphNode* ProducerOf(ValueId value, const OperatorName& target) const {
    if (value == kNoValue || producers_[value] < 0) return nullptr;
    const GraphNode& node = nodes_[producers_[value]];
    return node.target == target && node.results.size() == 1 ? &node : nullptr;
  }

  // The operand of a sum over all but the channels.
  ValueId Summed(const GraphNode& node) const {
    if (node.target != Op::kSumDimIntList || node.results.size() != 1) return kNoValue;
    const Argument* dims = node.Find("dim");
    const auto* list = dims == nullptr ? nullptr : std::get_if<IntListArg>(dims);
    if (list == nullptr || list->values.size() != 3 || !FlagOf(node, "keepdim")) return kNoValue;
    for (size_t i = 0; i < 3; ++i) {
      if (graph_.exprs.AsConst(list->values[i]) != static_cast<int64_t>(i == 0 ? 0 : i + 1)) return kNoValue;
    }
    return TensorOf(node, "self");
  }

  std::optional<Moments> Find(const GraphNode& node) {
    Moments moments;
    const GraphNode* square = ProducerOf(Summed(node), Op::kMulTensor);
    if (square == nullptr || TensorOf(*square, "self") != TensorOf(*square, "other")) return std::nullopt;
    const GraphNode* centered = ProducerOf(TensorOf(*square, "self"), Op::kSubTensor);
    if (centered == nullptr || centered->Find("alpha") != nullptr) return std::nullopt;
    moments.squares = node.results[0];
    moments.image = TensorOf(*centered, "self");
    moments.mean = TensorOf(*centered, "other");
    const GraphNode* mean = ProducerOf(moments.mean, Op::kDivTensor);
    if (mean == nullptr || moments.image == kNoValue) return std::nullopt;
    moments.sum = TensorOf(*mean, "self");
    const GraphNode* sum = ProducerOf(moments.sum, Op::kSumDimIntList);
    if (sum == nullptr || Summed(*sum) != moments.image || uses_[moments.sum] != 1) return std::nullopt;
    const std::optional<Sizes> sizes = SizesOf(graph_.type(moments.image));
    const Argument* count = mean->Find("other");
    const auto* number = count == nullptr ? nullptr : std::get_if<IntArg>(count);
    if (!sizes || number == nullptr ||
        graph_.exprs.AsConst(number->value) != sizes->images * sizes->rows * sizes->columns) {
      return std::nullopt;
    }
    return moments;
  }

  std::optional<Sizes> SizesOf(const TensorType& type) {
    if (type.dtype != v1::F32 || !IsChannelsLast(graph_.exprs, type)) return std::nullopt;
    int64_t size[4], elements = 1;
    for (size_t d = 0; d < 4; ++d) {
      const auto known = graph_.exprs.AsConst(type.sizes[d]);
      if (!known || *known < 1 || __builtin_mul_overflow(elements, *known, &elements)) return std::nullopt;
      size[d] = *known;
    }
    Sizes sizes{size[0], size[1], size[2], size[3], 1, DivisorUpTo(size[3], kBlockMax)};
    if (sizes.block_columns == sizes.columns)
      sizes.block_rows = DivisorUpTo(sizes.rows, kBlockMax / sizes.columns);
    if (!cost::PaysMomentsByBlocks(machine_, elements, sizes.block()) || sizes.blocks() < 2)
      return std::nullopt;
    return sizes;
  }

  absl::Status Emit(const Moments& moments, uint32_t origin) {
    const Sizes s = *SizesOf(graph_.type(moments.image));
    GraphBuilder b(graph_, &graph_.nodes, origin);
    const auto number = [&](int64_t value) { return b.Int(value); };
    const Value points = Permute(b.Use(moments.image), {0, 2, 3, 1});
    const Value cut =
        View(points, {number(s.images), number(s.rows / s.block_rows), number(s.block_rows),
                      number(s.columns / s.block_columns), number(s.block_columns), number(s.channels)});
    Value first = cut;
    for (const int64_t dim : {2, 4}) first = Slice(first, dim, number(0), number(1), 1);
    const Value from_first = cut - first;
    const auto flat = [&](const Value& x) { return View(x, {number(s.blocks()), number(s.channels)}); };
    const Value sum = flat(Sum(from_first, {2, 4}, true));
    const Value squares = flat(Sum(from_first * from_first, {2, 4}, true));
    const auto count = static_cast<double>(s.block());
    const Value block_mean = flat(first) + sum / count;
    const Value about_mean = Maximum(squares - sum * sum / count, 0.0);
    const Value mean = Mean(block_mean, {0}, true);
    const Value apart = block_mean - mean;
    const Value about_all = Sum(about_mean + apart * apart * count, {0}, true);
    const std::vector<ExprId> kept = {number(1), number(s.channels), number(1), number(1)};
    replacement_[moments.mean] = View(mean, kept).id();
    replacement_[moments.squares] = View(about_all, kept).id();
    return b.status();
  }

  Graph& graph_;
  const Machine& machine_;
  const std::vector<int32_t> producers_;
  const std::vector<uint32_t> uses_;
  std::vector<GraphNode> nodes_;
  std::vector<ValueId> replacement_;
};

}  // namespace

absl::Status CombineChannelMoments(Graph& graph, const Machine& machine) {
  return Combiner(graph, machine).Run();
}

}  // namespace kiln
