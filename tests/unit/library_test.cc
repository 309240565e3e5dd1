// Gemms, convolutions and attention: a description is what the call was made of, and a node becomes that
// call.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compiler/graph/arguments.h"
#include "compiler/library/attention.h"
#include "compiler/library/convolution.h"
#include "compiler/library/fixed_convolution.h"
#include "compiler/library/gemm.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

constexpr int kDrawn = 500;

struct Drawn : Maker {
  explicit Drawn(int seed) : random(static_cast<unsigned>(seed)) {}
  std::mt19937 random;

  int64_t Number(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  }
  bool Coin() { return Number(0, 1) == 1; }
  v1::DType DType() {
    constexpr v1::DType kAll[] = {v1::F32, v1::F16, v1::BF16, v1::F64};
    return kAll[Number(0, 3)];
  }
  // Arguments come in any order.
  void Shuffle(Args& args) { std::shuffle(args.begin(), args.end(), random); }
  int64_t Const(ExprId size) { return graph.exprs.AsConst(size).value_or(-1); }
};

// ---- gemms

struct DrawnGemm : Drawn {
  using Drawn::Drawn;
  const GemmForm* form = nullptr;
  int64_t batch = 1, rows = 1, columns = 1, summed = 1;
  std::optional<double> alpha, beta;  // as given
  bool adds = false, row = false, gelu = false;
  v1::DType dtype = v1::F32;
  ValueId a = kNoValue, b = kNoValue, c = kNoValue;
  Args args;
  TensorType result;

  std::vector<int64_t> Matrix(int64_t height, int64_t width) const {
    if (form->batched) return {batch, height, width};
    return {height, width};
  }
  void Draw() {
    form = &GemmForms()[static_cast<size_t>(Number(0, static_cast<int64_t>(GemmForms().size()) - 1))];
    batch = Number(1, 9), rows = Number(1, 99), columns = Number(2, 99), summed = Number(1, 99);
    dtype = form->integers ? v1::I8 : DType();
    a = Input(Matrix(rows, summed), dtype);
    b = Input(form->onednn ? Matrix(columns, summed) : Matrix(summed, columns), dtype);
    adds = !form->c.empty() && (!form->onednn || Coin());
    row = adds && (form->onednn || Coin());
    if (adds) c = Input(row ? std::vector<int64_t>{columns} : Matrix(rows, columns), dtype);
    args = Operands();
    if (adds && !form->onednn && Coin()) Give("beta", &beta);
    if (adds && !form->onednn && Coin()) Give("alpha", &alpha);
    gelu = form->target == Op::kAddmmActivation && Coin();
    if (form->target == Op::kAddmmActivation) args.emplace_back("use_gelu", BoolArg{gelu});
    result = Type(Matrix(rows, columns), form->integers ? v1::I32 : dtype);
  }
  // In the order of the schema.
  Args Operands() {
    const Argument added = c == kNoValue ? Argument(NoneArg{}) : T(c);
    if (form->onednn) {
      return {{"X", T(a)},
              {"W", T(b)},
              {"B", added},
              {"attr", StringArg{"none"}},
              {"scalars", FloatListArg{}},
              {"algorithm", StringArg{""}}};
    }
    Args operands;
    if (adds) operands.emplace_back(form->c, added);
    operands.emplace_back(form->a, T(a));
    operands.emplace_back(form->b, T(b));
    return operands;
  }
  void Give(const char* name, std::optional<double>* factor) {
    *factor = static_cast<double>(Number(0, 2));
    args.emplace_back(name, Coin() ? Int(static_cast<int64_t>(**factor)) : Argument(FloatArg{**factor}));
  }
  // The call as kiln.gemm, the last of the graph's nodes; its description.
  std::optional<Gemm> Read() {
    Node(std::string(NameOf(form->target)), args, result);
    EXPECT_FALSE(GemmOf(graph, graph.nodes.back()).has_value());  // of nodes of kiln's alone
    const std::optional<GraphNode> made = GemmNodeOf(graph, graph.nodes.back());
    if (!made) return std::nullopt;
    graph.nodes.push_back(*made);
    return GemmOf(graph, graph.nodes.back());
  }
};

std::string Text(const Graph& graph, const GraphNode& node) {
  Graph alone = graph;
  alone.nodes = {node};
  return alone.ToString();
}

TEST(GemmOf, ReadsWhatTheNodeWasMadeOf) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnGemm m(seed);
    m.Draw();
    m.Shuffle(m.args);
    const std::optional<Gemm> gemm = m.Read();
    ASSERT_TRUE(gemm.has_value()) << m.graph.ToString();
    EXPECT_EQ(gemm->form, m.form);
    EXPECT_EQ(gemm->a, m.a);
    EXPECT_EQ(gemm->b, m.b);
    EXPECT_EQ(gemm->c, m.c);
    EXPECT_EQ(gemm->d, m.graph.nodes.back().results[0]);
    EXPECT_EQ(gemm->alpha, m.alpha.value_or(1));
    EXPECT_EQ(gemm->beta, m.beta.value_or(1));
    EXPECT_EQ(m.Const(gemm->rows), m.rows);
    EXPECT_EQ(m.Const(gemm->columns), m.columns);
    EXPECT_EQ(m.Const(gemm->summed), m.summed);
    const Gemm::Activation activation = m.form->target != Op::kAddmmActivation ? Gemm::Activation::kNone
                                        : m.gelu                               ? Gemm::Activation::kGeluTanh
                                                                               : Gemm::Activation::kRelu;
    EXPECT_EQ(gemm->activation, activation);
    EXPECT_EQ(AddsRow(m.graph, *gemm), m.row);
    EXPECT_EQ(AddsBias(m.graph, *gemm), m.row && m.beta.value_or(1) == 1);
    EXPECT_EQ(HasOneDType(m.graph, *gemm), !m.form->integers);
    EXPECT_EQ(Multiplications(m.graph, *gemm),
              static_cast<double>((m.form->batched ? m.batch : 1) * m.rows * m.columns * m.summed));
  }
}

TEST(GemmCallOf, IsTheCallThatTheNodeWasMadeOf) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnGemm m(seed);
    m.Draw();
    const std::optional<Gemm> gemm = m.Read();
    ASSERT_TRUE(gemm.has_value());
    EXPECT_EQ(Text(m.graph, GemmCallOf(*gemm, m.graph.nodes.back())), Text(m.graph, m.graph.nodes[0]));
  }
}

TEST(GemmNodeOf, LeavesWhatIsNone) {
  enum Fault { kNone, kOperand, kVector, kRank, kComplex, kDType, kArgument, kFaults };
  for (int seed = 0; seed < kDrawn; ++seed) {
    for (int fault = kNone; fault < kFaults; ++fault) {
      DrawnGemm m(seed);
      m.Draw();
      const ValueId operand = m.Coin() ? m.a : m.b;
      const bool integers = m.form->integers;
      if (fault == kOperand) {
        std::erase_if(m.args, [&](const auto& argument) {
          const auto* tensor = std::get_if<TensorArg>(&argument.second);
          return tensor != nullptr && tensor->value == operand;
        });
      }
      if (fault == kVector) m.graph.values[operand] = m.Type({m.rows}, m.dtype);
      if (fault == kRank) m.result = m.Type({2, 2, 2, 2}, m.dtype);
      if (fault == kComplex) m.graph.values[operand].dtype = v1::C64;
      // Sums of integers of 8 bits are another operator's.
      if (fault == kDType) m.result.dtype = v1::I32, m.graph.values[m.a].dtype = integers ? v1::F32 : v1::I8;
      if (fault == kArgument) m.args.emplace_back("out_dtype", DTypeArg{v1::F32});
      EXPECT_EQ(m.Read().has_value(), fault == kNone) << fault << m.graph.ToString();
    }
  }
}

TEST(GemmOf, HasNoDescriptionOfWhatNoCallComputes) {
  for (const char* what :
       {"all", "an activation of oneDNN's", "an activation without an addend", "a batch"}) {
    DrawnGemm m(1);
    const bool batched = std::string(what) == "a batch";
    const auto matrix = [&](int64_t rows, int64_t columns) {
      return batched ? std::vector<int64_t>{3, rows, columns} : std::vector<int64_t>{rows, columns};
    };
    const ValueId a = m.Input(matrix(4, 5)), b = m.Input(matrix(5, 6)), c = m.Input({6});
    const bool adds = std::string(what) != "an activation without an addend";
    m.Node("kiln.gemm.default", GemmArguments({.a = a, .b = b, .c = adds ? c : kNoValue}),
           m.Type(matrix(4, 6)));
    SetActivation(m.graph.nodes[0], Gemm::Activation::kRelu);
    if (std::string(what) == "an activation of oneDNN's") SetOnednn(m.graph.nodes[0]);
    EXPECT_EQ(GemmOf(m.graph, m.graph.nodes[0]).has_value(), std::string(what) == "all") << what;
  }
}

TEST(GemmOf, DoesNotGuessFactors) {
  DrawnGemm m(1);
  const ExprId symbol = m.graph.exprs.Symbol(0, {2, 64});
  const ValueId a = m.Input({4, 5}), b = m.Input({5, 6}), c = m.Input({6});
  GraphBuilder::Args args = GemmArguments({.a = a, .b = b, .c = c});
  args.emplace_back("beta", IntArg{symbol});
  m.Node("kiln.gemm.default", args, m.Type({4, 6}));
  const std::optional<Gemm> gemm = GemmOf(m.graph, m.graph.nodes.back());
  ASSERT_TRUE(gemm.has_value());
  EXPECT_EQ(gemm->beta, std::nullopt);
  EXPECT_FALSE(AddsBias(m.graph, *gemm));
}

TEST(GemmArguments, AreReplacedWithNothingElse) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnGemm m(seed);
    m.Draw();
    const std::optional<Gemm> before = m.Read();
    ASSERT_TRUE(before.has_value());
    GraphNode node = m.graph.nodes.back();
    const auto twin = [&](ValueId value) {
      return value == kNoValue ? value : m.graph.NewValue(m.graph.type(value));
    };
    const GemmOperands others = {.a = twin(m.a), .b = twin(m.b), .c = twin(m.c)};
    node.args = WithOperands(node, others);
    const std::optional<Gemm> after = GemmOf(m.graph, node);
    ASSERT_TRUE(after.has_value());
    EXPECT_EQ(after->a, others.a);
    EXPECT_EQ(after->b, others.b);
    EXPECT_EQ(after->c, others.c);
    EXPECT_EQ(after->alpha, before->alpha);
    EXPECT_EQ(after->beta, before->beta);
    EXPECT_EQ(after->activation, before->activation);
    EXPECT_EQ(node.args.size(), m.graph.nodes.back().args.size());
  }
}

// ---- convolutions

struct DrawnConvolution : Drawn {
  using Drawn::Drawn;
  bool gradients = false, transposed = false, biased = false, one_number = false;
  int64_t images = 1, channels = 1, outputs = 1, groups = 1;
  int64_t kernel[2], stride[2], padding[2], dilation[2], rows = 1, columns = 1;
  std::vector<int64_t> image_sizes, weight_sizes;
  v1::DType dtype = v1::F32;
  ValueId gradient = kNoValue, input = kNoValue, weight = kNoValue, bias = kNoValue;
  Args args;

  int64_t SizeOf(int64_t size, int d) const {
    return (size + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
  }
  Argument Pair(const int64_t (&pair)[2]) { return one_number ? Ints({pair[0]}) : Ints({pair[0], pair[1]}); }
  void Draw() {
    gradients = Coin(), transposed = Number(0, 9) == 0, biased = !gradients && Coin(), one_number = Coin();
    images = Number(1, 4), dtype = DType();
    const bool points = Coin(), patches = !points && Coin();
    for (int d = 0; d < 2; ++d) {
      const bool same = d == 1 && one_number;
      kernel[d] = same ? kernel[0] : points ? 1 : Number(1, 6);
      stride[d] = same ? stride[0] : points ? Number(1, 8) / 8 + 1 : patches ? kernel[d] : Number(1, 3);
      padding[d] = same ? padding[0] : points || patches ? Number(0, 8) / 8 : Number(0, 2);
      dilation[d] = same ? dilation[0] : points || patches ? 1 : Number(1, 2);
    }
    groups = Coin() ? 1 : Number(1, 6);
    const bool depthwise = Coin();
    channels = groups * (depthwise ? 1 : Number(1, 3)), outputs = groups * Number(1, 3);
    rows = Number(12, 20), columns = Number(12, 20);
    input = Input({images, channels, rows, columns}, dtype);
    weight = Input({outputs, channels / groups, kernel[0], kernel[1]}, dtype);
    if (biased) bias = Input({outputs}, dtype);
    args = {{"input", T(input)},        {"weight", T(weight)},        {"stride", Pair(stride)},
            {"padding", Pair(padding)}, {"dilation", Pair(dilation)}, {"transposed", BoolArg{transposed}},
            {"groups", Int(groups)}};
    if (gradients) {
      gradient = Input(Result(), dtype);
      args.emplace_back("grad_output", T(gradient));
      args.emplace_back("bias_sizes", Ints({outputs}));
    } else {
      args.emplace_back("bias", biased ? T(bias) : NoneArg{});
    }
    Shuffle(args);
  }
  // The same by numbers; it borrows them.
  FixedConvolution Fixed() {
    image_sizes = {images, channels, rows, columns};
    weight_sizes = {outputs, channels / groups, kernel[0], kernel[1]};
    FixedConvolution fixed{.dtype = dtype, .images = {image_sizes, {}}, .weights = {weight_sizes, {}}};
    for (int d = 0; d < 2; ++d) {
      fixed.window.kernel[d] = kernel[d], fixed.window.stride[d] = stride[d];
      fixed.window.padding[d] = padding[d], fixed.window.dilation[d] = dilation[d];
    }
    fixed.groups = groups;
    return fixed;
  }
  std::vector<int64_t> Result() const { return {images, outputs, SizeOf(rows, 0), SizeOf(columns, 1)}; }
  std::optional<Convolution> Read() {
    if (gradients) {
      Nodes("aten.convolution_backward.default", args,
            {graph.type(input), graph.type(weight), Type({outputs}, dtype)});
    } else {
      Node("aten.convolution.default", args, Type(Result(), dtype));
    }
    return ConvolutionOf(graph, graph.nodes.back());
  }
  bool Is(const int64_t (&pair)[2], int64_t number) const { return pair[0] == number && pair[1] == number; }
};

TEST(ConvolutionOf, ReadsWhatTheNodeWasMadeOf) {
  int points = 0, patches = 0, depthwise = 0;
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnConvolution m(seed);
    m.Draw();
    const std::optional<Convolution> read = m.Read();
    ASSERT_TRUE(read.has_value()) << m.graph.ToString();
    EXPECT_EQ(read->gradients, m.gradients);
    EXPECT_EQ(read->input, m.input);
    EXPECT_EQ(read->weight, m.weight);
    EXPECT_EQ(read->bias, m.bias);
    EXPECT_EQ(read->gradient, m.gradient);
    EXPECT_EQ(read->result, m.gradients ? kNoValue : m.graph.nodes.back().results[0]);
    EXPECT_EQ(read->transposed, m.transposed);
    EXPECT_EQ(read->groups, m.groups);
    EXPECT_EQ(read->is_ungrouped(), m.groups == 1 && !m.transposed);
    const std::optional<Window> window = WindowOf(m.graph, *read);
    ASSERT_TRUE(window.has_value());
    for (int d = 0; d < 2; ++d) {
      EXPECT_EQ(window->kernel[d], m.kernel[d]);
      EXPECT_EQ(window->stride[d], m.stride[d]);
      EXPECT_EQ(window->padding[d], m.padding[d]);
      EXPECT_EQ(window->dilation[d], m.dilation[d]);
    }
    EXPECT_EQ(window->is_conv1x1(), m.Is(m.kernel, 1) && m.Is(m.stride, 1) && m.Is(m.padding, 0));
    EXPECT_EQ(window->cuts_patches(), m.kernel[0] * m.kernel[1] > 1 && m.stride[0] == m.kernel[0] &&
                                          m.stride[1] == m.kernel[1] && m.Is(m.padding, 0) &&
                                          m.Is(m.dilation, 1));
    EXPECT_EQ(IsConv1x1(m.graph, *read),
              window->is_conv1x1() && m.groups == 1 && !m.transposed && !m.gradients);
    EXPECT_EQ(IsConv1x1(m.Fixed()) && !m.transposed && !m.gradients, IsConv1x1(m.graph, *read));
    EXPECT_EQ(IsDepthwise(m.graph, *read), !m.transposed && m.channels == m.groups && m.groups > 1);
    EXPECT_EQ(IsWindowPerChannel(m.graph, *read), IsDepthwise(m.graph, *read) && !m.gradients);
    for (const v1::DType dtype : {v1::F32, v1::BF16})
      EXPECT_EQ(IsAllOf(m.graph, *read, dtype), m.dtype == dtype);
    points += IsConv1x1(m.graph, *read);
    patches += window->cuts_patches();
    depthwise += IsDepthwise(m.graph, *read);
  }
  for (const int count : {points, patches, depthwise}) EXPECT_GT(count, 10);  // the draws see each kind
}

TEST(GoesToCudnn, OnlyWhatAtenGivesItToo) {
  const std::vector<int64_t> images = {2, 4, 8, 8}, row_major = {256, 64, 8, 1},
                             channels_last = {256, 1, 32, 4};
  const std::vector<int64_t> dense = {6, 4, 3, 3}, halves = {6, 2, 3, 3}, depthwise = {4, 1, 3, 3};
  const Window plain{.kernel = {3, 3}}, dilated{.kernel = {3, 3}, .dilation = {1, 2}};
  const struct {
    const char* what;
    FixedConvolution convolution;
    bool deterministic, goes;
  } kCases[] = {
      {"one group", {v1::F32, {images, row_major}, {dense, {}}, plain, 1}, true, true},
      {"16 bits", {v1::BF16, {images, row_major}, {dense, {}}, plain, 1}, false, true},
      {"64 bits", {v1::F64, {images, row_major}, {dense, {}}, plain, 1}, false, false},
      {"integers", {v1::I32, {images, row_major}, {dense, {}}, plain, 1}, false, false},
      {"two groups", {v1::F32, {images, row_major}, {halves, {}}, plain, 2}, false, true},
      {"channels that do not fit", {v1::F32, {images, row_major}, {dense, {}}, plain, 2}, false, false},
      {"depthwise, by rows", {v1::F32, {images, row_major}, {depthwise, {}}, plain, 4}, false, false},
      {"depthwise, channels-last",
       {v1::F32, {images, channels_last}, {depthwise, {}}, plain, 4},
       false,
       true},
      {"dilated", {v1::F32, {images, row_major}, {dense, {}}, dilated, 1}, false, true},
      {"dilated, to repeat", {v1::F32, {images, row_major}, {dense, {}}, dilated, 1}, true, false},
  };
  for (const auto& one : kCases)
    EXPECT_EQ(GoesToCudnn(one.convolution, one.deterministic), one.goes) << one.what;
}

TEST(IsContiguous, OfImagesWithoutGaps) {
  const std::vector<int64_t> sizes = {2, 3, 4, 5}, row_major = {60, 20, 5, 1}, channels_last = {60, 1, 15, 3},
                             gaps = {80, 20, 5, 1};
  EXPECT_TRUE(IsContiguous({sizes, row_major}, false));
  EXPECT_FALSE(IsContiguous({sizes, row_major}, true));
  EXPECT_TRUE(IsContiguous({sizes, channels_last}, true));
  EXPECT_FALSE(IsContiguous({sizes, channels_last}, false));
  EXPECT_FALSE(IsContiguous({sizes, gaps}, false));
  const std::vector<int64_t> one_image = {1, 3, 4, 5}, matrix = {4, 5}, rows = {5, 1};
  EXPECT_TRUE(IsContiguous({one_image, gaps}, false));  // of one, the stride does not matter
  EXPECT_FALSE(IsContiguous({matrix, rows}, false));
}

TEST(ConvolutionOf, HasNoDescriptionWithoutAnOperand) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnConvolution m(seed);
    m.Draw();
    const size_t at = static_cast<size_t>(m.Number(0, static_cast<int64_t>(m.args.size()) - 1));
    const std::string name = m.args[at].first;
    m.args.erase(m.args.begin() + static_cast<std::ptrdiff_t>(at));
    const bool needed = name == "input" || name == "weight" || name == "grad_output";
    EXPECT_EQ(m.Read().has_value(), !needed) << name;
    m.graph.nodes.back().target = "aten.conv2d.default";
    EXPECT_FALSE(ConvolutionOf(m.graph, m.graph.nodes.back()).has_value());
  }
}

TEST(ConvolutionOf, DoesNotGuessNumbers) {
  for (const char* unknown : {"stride", "padding", "dilation", "groups", "none"}) {
    DrawnConvolution m(7);
    m.Draw();
    const ExprId symbol = m.graph.exprs.Symbol(0, {1, 64});
    for (auto& [name, argument] : m.args) {
      if (name != unknown) continue;
      argument = name == "groups" ? Argument(IntArg{symbol}) : IntListArg{{symbol, symbol}};
    }
    const std::optional<Convolution> read = m.Read();
    ASSERT_TRUE(read.has_value());
    const bool groups = std::string(unknown) == "groups", none = std::string(unknown) == "none";
    EXPECT_EQ(read->groups.has_value(), !groups);
    EXPECT_EQ(WindowOf(m.graph, *read).has_value(), groups || none) << unknown;
  }
}

TEST(ConvolutionNodes, ChangeOneThing) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnConvolution m(seed);
    m.Draw();
    const std::optional<Convolution> before = m.Read();
    ASSERT_TRUE(before.has_value());
    const GraphNode node = m.graph.nodes.back();
    const auto plain = ConvolutionOf(m.graph, WithoutBias(node));
    EXPECT_EQ(plain->bias, kNoValue);
    EXPECT_EQ(plain->input, before->input);
    EXPECT_EQ(plain->stride, before->stride);
    const auto dense = ConvolutionOf(m.graph, WithUnitStride(m.graph.exprs, node));
    EXPECT_EQ(dense->bias, before->bias);
    EXPECT_TRUE(m.Is(WindowOf(m.graph, *dense)->stride, 1));
    EXPECT_EQ(dense->padding, before->padding);
    if (!m.gradients) continue;
    GraphNode part = node;
    part.args = ArgumentsOfChannels(m.graph.exprs, node, m.weight, m.gradient, m.input, 2);
    const auto some = ConvolutionOf(m.graph, part);
    EXPECT_EQ(some->gradient, m.weight);
    EXPECT_EQ(some->input, m.gradient);
    EXPECT_EQ(some->weight, m.input);
    EXPECT_EQ(some->groups, 2);
    EXPECT_EQ(some->dilation, before->dilation);
    EXPECT_EQ(m.Const(std::get<IntListArg>(*part.Find("bias_sizes")).values[0]), 2);
  }
}

// ---- attention

struct DrawnAttention : Drawn {
  using Drawn::Drawn;
  const AttentionForm* form = nullptr;
  ValueId query = kNoValue, key = kNoValue, value = kNoValue, bias = kNoValue;
  std::optional<double> scale, dropout;
  bool causal = false, keeps_sums = false;
  v1::DType dtype = v1::F32;
  Args args;

  void Draw() {
    form =
        &AttentionForms()[static_cast<size_t>(Number(0, static_cast<int64_t>(AttentionForms().size()) - 1))];
    dtype = DType();
    const int64_t images = Number(1, 4), heads = Number(1, 8), queries = Number(1, 64), keys = Number(1, 64),
                  depth = Number(1, 64);
    query = Input({images, heads, queries, depth}, dtype);
    key = Input({images, heads, keys, depth}, dtype), value = Input({images, heads, keys, depth}, dtype);
    args = {{"query", T(query)}, {"key", T(key)}, {"value", T(value)}};
    if (!form->bias.empty() && Coin()) bias = Input({images, heads, queries, keys}, dtype);
    if (!form->bias.empty() && (bias != kNoValue || Coin()))
      args.emplace_back(form->bias, bias == kNoValue ? NoneArg{} : T(bias));
    causal = Coin(), keeps_sums = Coin();
    if (causal || Coin()) args.emplace_back("is_causal", BoolArg{causal});
    if (keeps_sums || Coin()) args.emplace_back("compute_log_sumexp", BoolArg{keeps_sums});
    if (Coin()) Give("scale", &scale);
    if (Coin()) Give("dropout_p", &dropout);
    Shuffle(args);
  }
  void Give(const char* name, std::optional<double>* number) {
    *number = static_cast<double>(Number(0, 3)) / 4;
    args.emplace_back(name, FloatArg{**number});
  }
  std::optional<Attention> Read() {
    Node(std::string(NameOf(form->target)), args, graph.type(query));
    EXPECT_FALSE(AttentionOf(graph, graph.nodes.back()).has_value());  // of nodes of kiln's alone
    const std::optional<GraphNode> made = AttentionNodeOf(graph, graph.nodes.back());
    if (!made) return std::nullopt;
    graph.nodes.push_back(*made);
    return AttentionOf(graph, graph.nodes.back());
  }
};

TEST(AttentionOf, ReadsWhatTheNodeWasMadeOf) {
  int plain = 0;
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnAttention m(seed);
    m.Draw();
    const std::optional<Attention> read = m.Read();
    ASSERT_TRUE(read.has_value()) << m.graph.ToString();
    EXPECT_EQ(read->form, m.form);
    EXPECT_EQ(read->query, m.query);
    EXPECT_EQ(read->key, m.key);
    EXPECT_EQ(read->value, m.value);
    EXPECT_EQ(read->bias, m.bias);
    EXPECT_EQ(read->default_scale, !m.scale.has_value());
    EXPECT_EQ(read->scale, m.scale);
    EXPECT_EQ(read->dropout, m.dropout.value_or(0));
    EXPECT_EQ(read->causal, m.causal);
    EXPECT_EQ(read->keeps_sums, m.keeps_sums);
    EXPECT_EQ(IsPlain(*read), !m.form->gradients && !m.causal && !m.keeps_sums && m.dropout.value_or(0) == 0);
    for (const v1::DType dtype : {v1::F32, v1::BF16})
      EXPECT_EQ(IsOfHeads(m.graph, *read, dtype), m.dtype == dtype);
    plain += IsPlain(*read);
    EXPECT_EQ(Text(m.graph, AttentionCallOf(*read, m.graph.nodes.back())), Text(m.graph, m.graph.nodes[0]));
  }
  EXPECT_GT(plain, 10);
}

TEST(AttentionOf, HasNoDescriptionWithoutAnOperand) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnAttention m(seed);
    m.Draw();
    const size_t at = static_cast<size_t>(m.Number(0, static_cast<int64_t>(m.args.size()) - 1));
    const std::string name = m.args[at].first;
    m.args.erase(m.args.begin() + static_cast<std::ptrdiff_t>(at));
    const bool needed = name == "query" || name == "key" || name == "value";
    EXPECT_EQ(m.Read().has_value(), !needed) << name;
    if (needed) continue;
    GraphNode other = m.graph.nodes.back();
    other.target = other.target == Op::kAttention ? Op::kAttentionBackward : Op::kAttention;
    EXPECT_FALSE(AttentionOf(m.graph, other).has_value());  // the kernel's operator gives something else
    m.graph.values[m.key].dtype = v1::C64;
    EXPECT_FALSE(AttentionOf(m.graph, m.graph.nodes.back()).has_value());
  }
}

TEST(AttentionOf, DoesNotGuessNumbers) {
  for (const char* unknown : {"scale", "dropout_p"}) {
    DrawnAttention m(3);
    m.Draw();
    std::erase_if(m.args, [&](const auto& argument) { return argument.first == unknown; });
    m.args.emplace_back(unknown, IntArg{m.graph.exprs.Symbol(0, {1, 64})});
    const std::optional<Attention> read = m.Read();
    ASSERT_TRUE(read.has_value());
    const bool scale = std::string(unknown) == "scale";
    EXPECT_EQ(scale ? read->scale : read->dropout, std::nullopt) << unknown;
    EXPECT_FALSE(scale ? read->default_scale : IsPlain(*read));
  }
}

TEST(AttentionOf, SeesOperandsThatDoNotGoTogether) {
  for (const int operand : {0, 1, 2, 3}) {
    DrawnAttention m(5);
    const ValueId query = m.Input({2, 3, 8, 4}), key = m.Input({2, 3, 9, 4}), value = m.Input({2, 3, 9, 4});
    const ValueId bias = m.Input({2, 3, 8, 9});
    m.form = AttentionFormOf(Op::kScaledDotProductEfficientAttention), m.query = query;
    m.args = {{"query", T(query)}, {"key", T(key)}, {"value", T(value)}, {"attn_bias", T(bias)}};
    if (operand == 1) m.graph.values[key] = m.Type({1, 3, 9, 4});
    if (operand == 2) m.graph.values[value] = m.Type({2, 3, 9, 4}, v1::BF16);
    if (operand == 3) m.graph.values[bias] = m.Type({8, 9});
    const std::optional<Attention> read = m.Read();
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(IsOfHeads(m.graph, *read, v1::F32), operand == 0) << operand;
  }
}

}  // namespace
}  // namespace kiln
