// Descriptions of gemms, convolutions and attention: what a parser reads is what the node was made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compiler/graph/arguments.h"
#include "compiler/graph/channels_last.h"
#include "compiler/library/attention.h"
#include "compiler/library/choice.h"
#include "compiler/library/convolution.h"
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
    dtype = DType();
    a = Input(Matrix(rows, summed), dtype);
    b = Input(form->onednn ? Matrix(columns, summed) : Matrix(summed, columns), dtype);
    adds = !form->c.empty() && (!form->onednn || Coin());
    row = adds && (form->onednn || Coin());
    if (adds) c = Input(row ? std::vector<int64_t>{columns} : Matrix(rows, columns), dtype);
    args = GemmArguments(form->target, {.a = a, .b = b, .c = c});
    if (adds && !form->onednn && Coin()) Give("alpha", &alpha);
    if (adds && !form->onednn && Coin()) Give("beta", &beta);
    gelu = form->target == Op::kAddmmActivation && Coin();
    if (gelu || (form->target == Op::kAddmmActivation && Coin()))
      args.emplace_back("use_gelu", BoolArg{gelu});
    Shuffle(args);
    result = Type(Matrix(rows, columns), dtype);
  }
  void Give(const char* name, std::optional<double>* factor) {
    *factor = static_cast<double>(Number(0, 2));
    args.emplace_back(name, Coin() ? Int(static_cast<int64_t>(**factor)) : Argument(FloatArg{**factor}));
  }
  std::optional<Gemm> Read() {
    Node(std::string(NameOf(form->target)), args, result);
    return GemmOf(graph, graph.nodes.back());
  }
};

TEST(GemmOf, ReadsWhatTheNodeWasMadeOf) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    DrawnGemm m(seed);
    m.Draw();
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
    EXPECT_TRUE(HasOneDType(m.graph, *gemm));
    EXPECT_EQ(Multiplications(m.graph, *gemm),
              static_cast<double>((m.form->batched ? m.batch : 1) * m.rows * m.columns * m.summed));
  }
}

TEST(GemmOf, HasNoDescriptionOfWhatIsNone) {
  for (int seed = 0; seed < kDrawn; ++seed) {
    for (const int fault : {0, 1, 2, 3, 4}) {
      DrawnGemm m(seed);
      m.Draw();
      if (fault == 1) m.args.erase(m.args.begin() + m.Number(0, 1));  // an operand or what may be left out
      if (fault == 2) m.graph.values[m.Coin() ? m.a : m.b] = m.Type({m.rows});
      if (fault == 3) m.result = m.Type({2, 2, 2, 2});
      const std::optional<Gemm> gemm = m.Read();
      if (fault == 4) {
        m.graph.nodes.back().target = "aten.add.Tensor";
        EXPECT_FALSE(GemmOf(m.graph, m.graph.nodes.back()).has_value());
      } else if (fault == 1) {
        const bool whole =
            TensorOf(m.graph.nodes.back(), m.form->a) != kNoValue &&
            TensorOf(m.graph.nodes.back(), m.form->b) != kNoValue &&
            (m.form->c.empty() || m.form->onednn || TensorOf(m.graph.nodes.back(), m.form->c) != kNoValue);
        EXPECT_EQ(gemm.has_value(), whole) << m.graph.ToString();
      } else {
        EXPECT_EQ(gemm.has_value(), fault == 0) << m.graph.ToString();
      }
    }
  }
}

TEST(GemmOf, DoesNotGuessFactors) {
  DrawnGemm m(1);
  const ExprId symbol = m.graph.exprs.Symbol(0, {2, 64});
  const ValueId a = m.Input({4, 5}), b = m.Input({5, 6}), c = m.Input({6});
  GraphBuilder::Args args = GemmArguments(Op::kAddmm, {.a = a, .b = b, .c = c});
  args.emplace_back("beta", IntArg{symbol});
  m.Node("aten.addmm.default", args, m.Type({4, 6}));
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
    EXPECT_EQ(node.args.size(), m.args.size());
  }
}

// ---- convolutions

struct DrawnConvolution : Drawn {
  using Drawn::Drawn;
  bool gradients = false, transposed = false, biased = false, one_number = false;
  int64_t images = 1, channels = 1, outputs = 1, groups = 1;
  int64_t kernel[2], stride[2], padding[2], dilation[2], rows = 1, columns = 1;
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
    EXPECT_EQ(window->covers_points(), m.Is(m.kernel, 1) && m.Is(m.stride, 1) && m.Is(m.padding, 0));
    EXPECT_EQ(window->cuts_patches(), m.kernel[0] * m.kernel[1] > 1 && m.stride[0] == m.kernel[0] &&
                                          m.stride[1] == m.kernel[1] && m.Is(m.padding, 0) &&
                                          m.Is(m.dilation, 1));
    EXPECT_EQ(IsConv1x1(m.graph, *read),
              window->covers_points() && m.groups == 1 && !m.transposed && !m.gradients);
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
    m.graph.nodes.back().target = "aten.softmax.int";
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

// ---- who computes it; the first case of each is chosen, every other lacks one thing

void MoveTo(Maker& m, v1::DeviceType device) {
  for (TensorType& type : m.graph.values) type.device = device;
}

TEST(Choose, AnotherLibraryForAGemm) {
  struct Case {
    const char* what;
    int64_t rows = 64;
    bool onednn = true, unused = true, scaled = false, turned = false;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CPU;
  };
  for (const Case& c :
       {Case{"all"}, Case{"work", 2}, Case{"oneDNN", 64, false}, Case{"MKL of 256 bits", 64, true, false},
        Case{"alpha", 64, true, true, true}, Case{"rows in order", 64, true, true, false, true},
        Case{"F32", 64, true, true, false, false, v1::BF16},
        Case{"a CPU", 64, true, true, false, false, v1::F32, v1::CUDA}}) {
    Maker m;
    const ValueId a = m.Input({c.rows, 512}, c.dtype), b = m.Input({512, 512}, c.dtype),
                  bias = m.Input({512}, c.dtype);
    if (c.turned) m.graph.values[a].strides = {m.graph.exprs.Const(1), m.graph.exprs.Const(c.rows)};
    GraphBuilder::Args args = GemmArguments(Op::kAddmm, {.a = a, .b = b, .c = bias});
    if (c.scaled) args.emplace_back("alpha", FloatArg{2});
    m.Node("aten.addmm.default", args, m.Type({c.rows, 512}, c.dtype));
    MoveTo(m, c.device);
    Machine machine;
    machine.cpu_libraries.onednn = c.onednn;
    machine.cpu_libraries.mkl_leaves_avx512_unused = c.unused;
    const Implementation chosen = Choose(m.graph, *GemmOf(m.graph, m.graph.nodes[0]), machine);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? Implementation::kOnednn : Implementation::kLibrary)
        << c.what;
  }
}

TEST(Choose, TheLibrarysActivationOfAGemm) {
  struct Case {
    const char* what;
    Gemm::Activation activation = Gemm::Activation::kGeluTanh;
    bool tf32 = true;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CUDA;
    Op target = Op::kAddmm;
    bool row = true;
  };
  constexpr Gemm::Activation kRelu = Gemm::Activation::kRelu, kGelu = Gemm::Activation::kGeluTanh;
  for (const Case& c : {Case{"all"}, Case{"all", kRelu, false}, Case{"all", kGelu, false, v1::BF16},
                        Case{"rounded factors", kGelu, false}, Case{"no F64", kRelu, true, v1::F64},
                        Case{"a GPU", kRelu, true, v1::F32, v1::CPU},
                        Case{"a plain gemm", kRelu, true, v1::F32, v1::CUDA, Op::kAddmmActivation},
                        Case{"a bias", kRelu, true, v1::F32, v1::CUDA, Op::kAddmm, false}}) {
    Maker m;
    const ValueId a = m.Input({8, 5}, c.dtype), b = m.Input({5, 4}, c.dtype),
                  row = m.Input(c.row ? std::vector<int64_t>{4} : std::vector<int64_t>{8, 4}, c.dtype);
    m.Node(std::string(NameOf(c.target)), GemmArguments(c.target, {.a = a, .b = b, .c = row}),
           m.Type({8, 4}, c.dtype));
    MoveTo(m, c.device);
    const Gemm gemm = *GemmOf(m.graph, m.graph.nodes[0]);
    EXPECT_EQ(Activates(m.graph, gemm, c.activation, c.tf32), std::string(c.what) == "all") << c.what;
  }
}

TEST(Choose, PaddedRowsForAGemm) {
  struct Case {
    const char* what;
    int64_t rows = 1024, columns = 2049;
    v1::DType dtype = v1::BF16;
    v1::DeviceType device = v1::CUDA;
    bool row = true;
  };
  for (const Case& c : {Case{"all"}, Case{"work", 256}, Case{"bytes that are missing", 1024, 2048},
                        Case{"16 bits", 1024, 2049, v1::F32}, Case{"a GPU", 1024, 2049, v1::BF16, v1::CPU},
                        Case{"a row that is added", 1024, 2049, v1::BF16, v1::CUDA, false}}) {
    Maker m;
    const ValueId a = m.Input({c.rows, 1024}, c.dtype), b = m.Input({1024, c.columns}, c.dtype);
    const std::vector<int64_t> row = {c.columns}, all = {c.rows, c.columns};
    const ValueId added = m.Input(c.row ? row : all, c.dtype);
    m.Node("aten.addmm.default", GemmArguments(Op::kAddmm, {.a = a, .b = b, .c = added}),
           m.Type(all, c.dtype));
    MoveTo(m, c.device);
    const Gemm gemm = *GemmOf(m.graph, m.graph.nodes[0]);
    EXPECT_EQ(WantsPaddedRows(m.graph, gemm, Machine()), std::string(c.what) == "all") << c.what;
  }
}

TEST(Choose, AKernelOrAGemmForAConvolution) {
  struct Case {
    Implementation chosen;
    v1::DeviceType device = v1::CPU;
    int64_t groups = 1, kernel = 1, stride = 1, channels = 16;
    v1::DType dtype = v1::F32;
    int64_t unrolled = 25;  // points of a window
  };
  constexpr Implementation kGemm = Implementation::kGemm, kKernel = Implementation::kKernel,
                           kLibrary = Implementation::kLibrary;
  for (const Case& c : {Case{kGemm}, Case{kLibrary, v1::CUDA}, Case{kLibrary, v1::CPU, 1, 3},
                        Case{kLibrary, v1::CPU, 1, 1, 2}, Case{kLibrary, v1::CPU, 1, 1, 1, 1024},
                        Case{kLibrary, v1::CPU, 1, 1, 1, 16, v1::F64}, Case{kKernel, v1::CUDA, 16, 3},
                        Case{kLibrary, v1::CPU, 16, 3}, Case{kLibrary, v1::CUDA, 16, 7},
                        Case{kLibrary, v1::CUDA, 4, 3}, Case{kKernel, v1::CUDA, 16, 7, 1, 16, v1::F32, 49},
                        Case{kLibrary, v1::CUDA, 16, 7, 1, 16, v1::F32, 48}}) {
    Maker m;
    const int64_t size = (8 - 1) / c.stride + 1;
    const ValueId x = m.Input({2, c.channels, 8, 8}, c.dtype),
                  w = m.Input({c.channels, c.channels / c.groups, c.kernel, c.kernel}, c.dtype);
    m.Node("aten.convolution.default",
           {{"input", T(x)},
            {"weight", T(w)},
            {"stride", m.Ints({c.stride, c.stride})},
            {"padding", m.Ints({c.kernel / 2, c.kernel / 2})},
            {"dilation", m.Ints({1, 1})},
            {"transposed", BoolArg{false}},
            {"groups", m.Int(c.groups)}},
           m.Type({2, c.channels, size, size}, c.dtype));
    MoveTo(m, c.device);
    Machine machine;
    machine.gpu_libraries.unrolled_window_points_max = c.unrolled;
    const Convolution convolution = *ConvolutionOf(m.graph, m.graph.nodes[0]);
    EXPECT_EQ(Choose(m.graph, convolution, machine), c.chosen) << m.graph.ToString();
  }
}

TEST(Choose, PatchesForAConvolution) {
  struct Case {
    const char* what;
    v1::DeviceType device = v1::CUDA;
    int64_t groups = 1, kernel = 2, stride = 2, padding = 0;
    v1::DType dtype = v1::F32;
    bool transposed = false, gradients = false;
  };
  for (const Case& c :
       {Case{"all"}, Case{"all", v1::CUDA, 1, 2, 2, 0, v1::BF16}, Case{"a GPU", v1::CPU},
        Case{"no groups", v1::CUDA, 2}, Case{"several points", v1::CUDA, 1, 1, 1},
        Case{"no overlap", v1::CUDA, 1, 2, 1}, Case{"no padding", v1::CUDA, 1, 2, 2, 1},
        Case{"no F64", v1::CUDA, 1, 2, 2, 0, v1::F64}, Case{"one way", v1::CUDA, 1, 2, 2, 0, v1::F32, true},
        Case{"the convolution itself", v1::CUDA, 1, 2, 2, 0, v1::F32, false, true}}) {
    Maker m;
    const ValueId x = m.Input({2, 16, 8, 8}, c.dtype),
                  w = m.Input({16, 16 / c.groups, c.kernel, c.kernel}, c.dtype);
    const int64_t size = (8 + 2 * c.padding - c.kernel) / c.stride + 1;
    Maker::Args args = {{"input", T(x)},
                        {"weight", T(w)},
                        {"stride", m.Ints({c.stride, c.stride})},
                        {"padding", m.Ints({c.padding, c.padding})},
                        {"dilation", m.Ints({1, 1})},
                        {"transposed", BoolArg{c.transposed}},
                        {"groups", m.Int(c.groups)}};
    const TensorType type = m.Type({2, 16, size, size}, c.dtype);
    if (c.gradients) {
      args.emplace_back("grad_output", T(m.Input({2, 16, size, size}, c.dtype)));
      m.Nodes("aten.convolution_backward.default", args, {m.graph.type(x), m.graph.type(w), TensorType()});
    } else {
      m.Node("aten.convolution.default", args, type);
    }
    MoveTo(m, c.device);
    const Convolution convolution = *ConvolutionOf(m.graph, m.graph.nodes[0]);
    const Implementation chosen = Choose(m.graph, convolution, Machine());
    EXPECT_EQ(chosen == Implementation::kPatches, std::string(c.what) == "all") << c.what;
  }
}

// Gradients of a convolution that keeps the sizes of images.
struct Gradients : Maker {
  int64_t channels = 16, groups = 1, window = 3;
  v1::DType dtype = v1::F32;
  // Layouts: channels-last (c), row-major (r), or a result that nobody wants (-).
  char image = 'c', of_image = 'c', of_weight = 'c';

  Convolution Make(v1::DeviceType device) {
    const ValueId x = Input({2, channels, 8, 8}, dtype), g = Input({2, channels, 8, 8}, dtype),
                  w = Input({channels, channels / groups, window, window}, dtype);
    const TensorType image_type = graph.type(x), weight_type = graph.type(w);
    graph.values[x] = Laid(image_type, image);
    Nodes("aten.convolution_backward.default",
          {{"grad_output", T(g)},
           {"input", T(x)},
           {"weight", T(w)},
           {"stride", Ints({1, 1})},
           {"padding", Ints({window / 2, window / 2})},
           {"dilation", Ints({1, 1})},
           {"transposed", BoolArg{false}},
           {"groups", Int(groups)}},
          {Laid(image_type, of_image), Laid(weight_type, of_weight), TensorType()});
    MoveTo(*this, device);
    return *ConvolutionOf(graph, graph.nodes[0]);
  }
  TensorType Laid(TensorType type, char layout) {
    if (layout == '-') return {};
    if (layout == 'c') type.strides = ChannelsLastStrides(graph.exprs, type.sizes);
    return type;
  }
};

TEST(Choose, TheLayoutOfGradients) {
  struct Case {
    bool can, chosen;
    v1::DeviceType device = v1::CUDA;
    int64_t groups = 1;
    v1::DType dtype = v1::F32;
    char image = 'c', of_image = 'c', of_weight = 'c';
  };
  for (const Case& c : {Case{true, true}, Case{true, true, v1::CPU}, Case{false, true, v1::CUDA, 1, v1::F64},
                        Case{false, false, v1::CPU, 1, v1::F64}, Case{false, false, v1::CUDA, 2},
                        Case{true, false, v1::CPU, 16}, Case{false, false, v1::CUDA, 16},
                        Case{true, false, v1::CUDA, 1, v1::F32, 'c', 'r'},
                        Case{true, true, v1::CUDA, 1, v1::F32, 'c', '-', '-'},
                        Case{true, false, v1::CUDA, 1, v1::F32, 'r', '-', '-'},
                        Case{true, true, v1::CUDA, 1, v1::F32, 'r', '-', 'c'},
                        Case{true, false, v1::CPU, 1, v1::F32, 'r', '-', 'c'}}) {
    Gradients m;
    m.groups = c.groups, m.dtype = c.dtype;
    m.image = c.image, m.of_image = c.of_image, m.of_weight = c.of_weight;
    const Convolution convolution = m.Make(c.device);
    EXPECT_EQ(CanComputeGradientsChannelsLast(m.graph, convolution), c.can) << m.graph.ToString();
    EXPECT_EQ(ComputesGradientsChannelsLast(m.graph.exprs, m.graph, m.graph.nodes[0], convolution), c.chosen)
        << m.graph.ToString();
  }
}

TEST(Choose, GroupsOfChannelsForGradients) {
  struct Case {
    const char* what;
    int64_t channels = 768, window = 7, inputs_of_group = 1;
    char image = 'c';
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CPU;
  };
  for (const Case& c :
       {Case{"all"}, Case{"channels", 640}, Case{"windows", 768, 5}, Case{"a window a channel", 768, 7, 2},
        Case{"channels-last", 768, 7, 1, 'r'}, Case{"F32", 768, 7, 1, 'c', v1::F64},
        Case{"a CPU", 768, 7, 1, 'c', v1::F32, v1::CUDA}}) {
    Gradients m;
    m.channels = c.channels, m.groups = c.channels / c.inputs_of_group, m.window = c.window;
    m.image = c.image, m.dtype = c.dtype;
    const Convolution convolution = m.Make(c.device);
    const std::optional<int64_t> chosen = ChannelsAtOnce(m.graph.exprs, m.graph, convolution);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? std::optional<int64_t>(160) : std::nullopt) << c.what;
  }
  // Each channel of the image has two windows.
  Gradients m;
  m.channels = m.groups = 768, m.window = 7;
  Convolution convolution = m.Make(v1::CPU);
  convolution.weight = m.Input({2 * m.channels, 1, m.window, m.window});
  EXPECT_EQ(ChannelsAtOnce(m.graph.exprs, m.graph, convolution), std::nullopt);
}

TEST(Choose, GemmsForAttention) {
  struct Case {
    const char* what;
    int64_t images = 1, heads = 8, keys = 256;
    bool causal = false;
    v1::DType dtype = v1::F32;
    v1::DeviceType device = v1::CUDA;
  };
  for (const Case& c :
       {Case{"all"}, Case{"all", 8, 1}, Case{"one image or head", 8, 8}, Case{"keys", 1, 8, 64},
        Case{"no mask", 1, 8, 256, true}, Case{"F32", 1, 8, 256, false, v1::BF16},
        Case{"a GPU", 1, 8, 256, false, v1::F32, v1::CPU}}) {
    Maker m;
    const ValueId query = m.Input({c.images, c.heads, 64, 32}, c.dtype),
                  key = m.Input({c.images, c.heads, c.keys, 32}, c.dtype),
                  value = m.Input({c.images, c.heads, c.keys, 32}, c.dtype);
    m.Node("aten._scaled_dot_product_efficient_attention.default",
           {{"query", T(query)}, {"key", T(key)}, {"value", T(value)}, {"is_causal", BoolArg{c.causal}}},
           m.graph.type(query));
    MoveTo(m, c.device);
    const Machine machine;
    const Implementation chosen = Choose(m.graph, *AttentionOf(m.graph, m.graph.nodes[0]), machine);
    EXPECT_EQ(chosen, std::string(c.what) == "all" ? Implementation::kGemm : Implementation::kLibrary)
        << c.what;
  }
}

}  // namespace
}  // namespace kiln
