// Descriptions of gemms, convolutions and attention: what a parser reads is what the node was made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compiler/graph/arguments.h"
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

}  // namespace
}  // namespace kiln
