#include "tests/property/random_graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <utility>

#include "compiler/ir/half.h"
#include "tests/property/random_value.h"

namespace kiln::testing {
namespace {

class Generator {
 public:
  Generator(uint64_t seed, const RandomGraphOptions& options) : options_(options), random_(seed) {}

  RandomGraph Run() {
    graph_.set_format_version(1);
    graph_.set_kind(v1::INFERENCE);
    MakeInputs();
    for (int i = 0, tries = 0; i < options_.nodes && tries < 20 * options_.nodes; ++tries)
      i += AddRandomNode();
    if (options_.mutation) MutateInput();
    MakeOutputs();
    result_.graph = graph_;
    for (size_t i = 0; i < input_count_; ++i) {
      v1::InputFact* fact = result_.facts.add_inputs();
      fact->set_mutated(mutated_.count(i) != 0);
    }
    for (int i = 0; i < graph_.outputs_size(); ++i) result_.facts.add_outputs()->set_user_visible(true);
    return std::move(result_);
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  // ---- sizes

  int Expr(v1::ExprOp op, int64_t value, const std::vector<int>& args) {
    v1::ExprNode* node = graph_.add_exprs();
    node->set_op(op);
    node->set_value(value);
    for (int arg : args) node->add_args(arg);
    return graph_.exprs_size() - 1;
  }
  int ExprOf(const Dim& d) { return d.expr >= 0 ? d.expr : Expr(v1::EXPR_CONST, d.value, {}); }
  Dim Times(const Dim& a, const Dim& b) {
    if (a.expr < 0 && b.expr < 0) return {a.value * b.value};
    if (a.expr < 0 && a.value == 1) return b;
    if (b.expr < 0 && b.value == 1) return a;
    return {a.value * b.value, Expr(v1::EXPR_MUL, 0, {ExprOf(a), ExprOf(b)})};
  }
  Dim Plus(const Dim& a, const Dim& b) {
    if (a.expr < 0 && b.expr < 0) return {a.value + b.value};
    return {a.value + b.value, Expr(v1::EXPR_ADD, 0, {ExprOf(a), ExprOf(b)})};
  }
  static bool Same(const Dim& a, const Dim& b) { return a.value == b.value && a.expr == b.expr; }
  static bool IsOne(const Dim& a) { return a.value == 1 && a.expr < 0; }
  static void Write(const Dim& d, v1::SymInt* out) {
    if (d.expr < 0) {
      out->set_value(d.value);
    } else {
      out->set_expr(d.expr);
    }
  }
  std::vector<Dim> Dense(const std::vector<Dim>& sizes) {
    std::vector<Dim> strides(sizes.size());
    Dim next = {1};
    for (size_t d = sizes.size(); d-- > 0;) {
      strides[d] = next;
      next = Times(next, sizes[d]);
    }
    return strides;
  }
  void WriteMeta(const Value& value, v1::TensorMeta* meta) {
    meta->set_dtype(value.dtype);
    meta->mutable_device()->set_type(options_.device);
    for (const Dim& d : value.sizes) Write(d, meta->add_sizes());
    for (const Dim& d : value.strides) Write(d, meta->add_strides());
    meta->mutable_storage_offset()->set_value(0);
  }

  // ---- inputs

  void MakeInputs() {
    const int64_t pool[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 33};
    std::vector<Dim> dims;
    for (int i = 0; i < 3; ++i) dims.push_back({pool[Draw(1, 9)]});
    size_t inputs = static_cast<size_t>(Draw(2, 4));
    if (options_.symbolic) {
      // The first input binds the symbol: its first dimension is it.
      v1::Symbol* symbol = graph_.add_symbols();
      symbol->set_kind(v1::SYMBOL_INT);
      symbol->set_min(2);
      symbol->set_max(1 << 20);
      symbol->mutable_binding()->set_source(v1::SymbolBinding::INPUT_SIZE);
      dims[0] = {Draw(2, 40), Expr(v1::EXPR_SYMBOL, 0, {})};
      result_.hints.add_values(dims[0].value);
    }
    for (size_t i = 0; i < inputs; ++i) {
      Value value = Float();
      std::vector<Dim> sizes = dims;
      if (i > 0) {
        for (size_t d = 0; d < sizes.size(); ++d) {
          if (Chance(0.25)) sizes[d] = {1};
        }
        while (!sizes.empty() && Chance(0.3)) sizes.erase(sizes.begin());
      }
      value.sizes = sizes;
      value.strides = Dense(sizes);
      if (i > 0 && sizes.size() >= 2 && Chance(0.3)) Transpose(&value);
      std::normal_distribution<double> normal(0, 1);
      for (int64_t k = Numel(sizes); k > 0; --k) value.data.push_back(Rounded(normal(random_)));
      AddInput(value);
    }
    // Row numbers for gathers along a dimension of 5 or more.
    Value rows;
    rows.dtype = v1::I64;
    rows.sizes = {{Draw(2, 6)}};
    rows.strides = {{1}};
    for (int64_t k = 0; k < rows.sizes[0].value; ++k) rows.data.push_back(static_cast<double>(Draw(-2, 1)));
    index_value_ = AddInput(rows);
  }

  // The same sizes with the last two dimensions swapped in memory.
  void Transpose(Value* value) {
    size_t n = value->sizes.size();
    std::vector<Dim> swapped = value->sizes;
    std::swap(swapped[n - 1], swapped[n - 2]);
    value->strides = Dense(swapped);
    std::swap(value->strides[n - 1], value->strides[n - 2]);
    value->dense = IsOne(value->sizes[n - 1]) || IsOne(value->sizes[n - 2]);
  }

  size_t AddInput(Value value) {
    value.id = static_cast<uint32_t>(input_count_++);
    WriteMeta(value, graph_.add_inputs()->mutable_tensor());
    result_.inputs.push_back(Export(value));
    values_.push_back(std::move(value));
    next_id_ = static_cast<uint32_t>(input_count_);
    return values_.size() - 1;
  }

  static RandomTensor Export(const Value& value) {
    RandomTensor tensor;
    tensor.dtype = value.dtype;
    for (const Dim& d : value.sizes) tensor.sizes.push_back(d.value);
    for (const Dim& d : value.strides) tensor.strides.push_back(d.value);
    tensor.data = value.data;
    return tensor;
  }

  // ---- nodes

  v1::Node NewNode(const std::string& target) {
    v1::Node node;
    node.set_target(target);
    return node;
  }
  static v1::Argument* Arg(v1::Node* node, const std::string& name) {
    v1::NamedArgument* arg = node->add_args();
    arg->set_name(name);
    return arg->mutable_value();
  }
  static void TensorArgument(v1::Node* node, const std::string& name, const Value& value) {
    Arg(node, name)->set_as_tensor(value.id);
  }
  static void SizesArgument(v1::Node* node, const std::string& name, const std::vector<Dim>& sizes) {
    v1::Argument* arg = Arg(node, name);
    bool symbolic = std::any_of(sizes.begin(), sizes.end(), [](const Dim& d) { return d.expr >= 0; });
    if (symbolic) {
      for (const Dim& d : sizes) Write(d, arg->mutable_as_sym_ints()->add_values());
    } else {
      arg->mutable_as_ints();
      for (const Dim& d : sizes) arg->mutable_as_ints()->add_values(d.value);
    }
  }
  static void IntsArgument(v1::Node* node, const std::string& name, const std::vector<int64_t>& values) {
    v1::Argument::Ints* ints = Arg(node, name)->mutable_as_ints();
    for (int64_t value : values) ints->add_values(value);
  }

  // False when the numbers grow too large to compare well.
  bool Finish(v1::Node node, Value value) {
    for (double& x : value.data) {
      if (!(std::abs(x) < 1e3)) return false;
      if (options_.round_each_node) x = Rounded(x);
    }
    if (Numel(value.sizes) > 20000) return false;
    value.id = next_id_++;
    WriteMeta(value, node.add_results());
    *graph_.add_nodes() = std::move(node);
    values_.push_back(std::move(value));
    return true;
  }

  double Rounded(double x) const {
    const float value = static_cast<float>(x);
    if (options_.dtype == v1::F16) return FromF16(ToF16(value));
    return options_.dtype == v1::BF16 ? FromBF16(ToBF16(value)) : value;
  }

  Value Float() const {
    Value value;
    value.dtype = options_.dtype;
    return value;
  }
  Value Computed(const std::vector<Dim>& sizes) {
    Value value = Float();
    value.sizes = sizes;
    value.strides = Dense(sizes);
    value.data.resize(static_cast<size_t>(Numel(sizes)));
    return value;
  }

  // Recent values are likelier, so that chains and common readers appear.
  const Value& Pick() {
    while (true) {
      size_t n = values_.size();
      size_t i = Chance(0.6) ? n - 1 - static_cast<size_t>(Draw(0, std::min<int64_t>(4, n - 1)))
                             : static_cast<size_t>(Draw(0, n - 1));
      if (values_[i].dtype == options_.dtype) return values_[i];
    }
  }

  bool AddRandomNode() {
    using Maker = bool (Generator::*)();
    static const std::pair<int, Maker> kMakers[] = {
        {6, &Generator::AddUnary},  {8, &Generator::AddBinary},  {5, &Generator::AddReduction},
        {2, &Generator::AddView},   {2, &Generator::AddPermute}, {2, &Generator::AddExpand},
        {2, &Generator::AddSlice},  {2, &Generator::AddCat},     {2, &Generator::AddSoftmax},
        {1, &Generator::AddCumsum}, {1, &Generator::AddGather},  {2, &Generator::AddMatmul},
        {1, &Generator::AddFlip},   {1, &Generator::AddPad},     {2, &Generator::AddWhere},
    };
    int total = 0;
    for (const auto& [weight, maker] : kMakers) total += weight;
    int64_t at = Draw(0, total - 1);
    for (const auto& [weight, maker] : kMakers) {
      at -= weight;
      if (at < 0) return (this->*maker)();
    }
    return false;
  }

  bool AddUnary() {
    static const std::pair<const char*, double (*)(double)> kOps[] = {
        {"aten.tanh.default", [](double x) { return std::tanh(x); }},
        {"aten.sigmoid.default", [](double x) { return 1 / (1 + std::exp(-x)); }},
        {"aten.relu.default", [](double x) { return x > 0 ? x : 0; }},
        {"aten.neg.default", [](double x) { return -x; }},
        {"aten.abs.default", [](double x) { return std::abs(x); }},
        {"aten.sin.default", [](double x) { return std::sin(x); }},
    };
    const auto& [target, fn] = kOps[Draw(0, 5)];
    const Value from = Pick();
    v1::Node node = NewNode(target);
    TensorArgument(&node, "self", from);
    Value value = Computed(from.sizes);
    for (size_t i = 0; i < value.data.size(); ++i) value.data[i] = fn(from.data[i]);
    return Finish(std::move(node), std::move(value));
  }

  bool Broadcast(const std::vector<Dim>& a, const std::vector<Dim>& b, std::vector<Dim>* out) {
    size_t rank = std::max(a.size(), b.size());
    out->assign(rank, {});
    for (size_t k = 0; k < rank; ++k) {
      Dim x = k < a.size() ? a[a.size() - 1 - k] : Dim{1};
      Dim y = k < b.size() ? b[b.size() - 1 - k] : Dim{1};
      if (!Same(x, y) && !IsOne(x) && !IsOne(y)) return false;
      (*out)[rank - 1 - k] = IsOne(x) ? y : x;
    }
    return true;
  }

  static double At(const Value& value, const Index& index) {
    Index own(value.sizes.size());
    for (size_t d = 0; d < own.size(); ++d) {
      int64_t i = index[index.size() - own.size() + d];
      own[d] = value.sizes[d].value == 1 ? 0 : i;
    }
    return value.data[static_cast<size_t>(Flat(value.sizes, own))];
  }

  bool AddBinary() {
    static const std::pair<const char*, double (*)(double, double)> kOps[] = {
        {"aten.add.Tensor", [](double a, double b) { return a + b; }},
        {"aten.mul.Tensor", [](double a, double b) { return a * b; }},
        {"aten.sub.Tensor", [](double a, double b) { return a - b; }},
        {"aten.maximum.default", [](double a, double b) { return std::max(a, b); }},
    };
    const auto& [target, fn] = kOps[Draw(0, 3)];
    const Value a = Pick();
    const Value b = Pick();
    std::vector<Dim> sizes;
    if (!Broadcast(a.sizes, b.sizes, &sizes)) return false;
    v1::Node node = NewNode(target);
    TensorArgument(&node, "self", a);
    TensorArgument(&node, "other", b);
    Value value = Computed(sizes);
    ForEach(sizes, [&](const Index& i) { value.data[Flat(sizes, i)] = fn(At(a, i), At(b, i)); });
    return Finish(std::move(node), std::move(value));
  }

  bool AddWhere() {
    // The condition compares numbers that rounding cannot bring together: an input with a constant.
    const Value& source = values_[static_cast<size_t>(Draw(0, static_cast<int64_t>(input_count_) - 2))];
    const Value a = Pick();
    std::vector<Dim> sizes;
    if (source.dtype != options_.dtype || !Broadcast(source.sizes, a.sizes, &sizes)) return false;
    v1::Node compare = NewNode("aten.gt.Scalar");
    TensorArgument(&compare, "self", source);
    double threshold = 0.25;
    uint64_t bits;
    std::copy_n(reinterpret_cast<const char*>(&threshold), sizeof bits, reinterpret_cast<char*>(&bits));
    Arg(&compare, "other")->set_as_float(bits);
    Value condition = Computed(source.sizes);
    condition.dtype = v1::BOOL;
    for (size_t i = 0; i < condition.data.size(); ++i) condition.data[i] = source.data[i] > threshold;
    if (!Finish(std::move(compare), condition)) return false;
    condition = values_.back();
    v1::Node node = NewNode("aten.where.self");
    TensorArgument(&node, "condition", condition);
    TensorArgument(&node, "self", a);
    TensorArgument(&node, "other", a);
    node.mutable_args(2)->mutable_value()->set_as_tensor(values_[0].id);
    std::vector<Dim> all;
    if (!Broadcast(sizes, values_[0].sizes, &all)) return true;
    const Value other = values_[0];
    Value value = Computed(all);
    ForEach(all, [&](const Index& i) {
      value.data[Flat(all, i)] = At(condition, i) != 0 ? At(a, i) : At(other, i);
    });
    return Finish(std::move(node), std::move(value));
  }

  bool AddReduction() {
    const Value from = Pick();
    if (from.sizes.empty()) return false;
    std::set<int64_t> dims;
    dims.insert(Draw(0, static_cast<int64_t>(from.sizes.size()) - 1));
    if (Chance(0.3)) dims.insert(Draw(0, static_cast<int64_t>(from.sizes.size()) - 1));
    bool keep = Chance(0.6);
    int kind = static_cast<int>(Draw(0, 2));
    v1::Node node = NewNode(kind == 0   ? "aten.sum.dim_IntList"
                            : kind == 1 ? "aten.amax.default"
                                        : "aten.mean.dim");
    TensorArgument(&node, "self", from);
    IntsArgument(&node, "dim", {dims.begin(), dims.end()});
    Arg(&node, "keepdim")->set_as_bool(keep);
    std::vector<Dim> kept = from.sizes;
    int64_t count = 1;
    for (int64_t d : dims) {
      count *= kept[d].value;
      kept[d] = {1};
    }
    std::vector<double> data(static_cast<size_t>(Numel(kept)), kind == 1 ? -1e30 : 0.0);
    ForEach(from.sizes, [&](const Index& i) {
      Index to = i;
      for (int64_t d : dims) to[d] = 0;
      double& out = data[Flat(kept, to)];
      double x = from.data[Flat(from.sizes, i)];
      out = kind == 1 ? std::max(out, x) : out + x;
    });
    if (kind == 2) {
      for (double& x : data) x /= static_cast<double>(count);
    }
    std::vector<Dim> sizes;
    for (size_t d = 0; d < kept.size(); ++d) {
      if (keep || dims.count(static_cast<int64_t>(d)) == 0) sizes.push_back(kept[d]);
    }
    Value value = Computed(sizes);
    value.data = std::move(data);
    return Finish(std::move(node), std::move(value));
  }

  bool AddView() {
    const Value from = Pick();
    if (!from.dense || from.sizes.size() < 2) return false;
    std::vector<Dim> sizes = from.sizes;
    size_t at = static_cast<size_t>(Draw(0, static_cast<int64_t>(sizes.size()) - 2));
    sizes[at] = Times(sizes[at], sizes[at + 1]);
    sizes.erase(sizes.begin() + static_cast<int64_t>(at) + 1);
    Value value = Computed(sizes);
    value.data = from.data;
    v1::Node node = NewNode("aten.view.default");
    TensorArgument(&node, "self", from);
    SizesArgument(&node, "size", sizes);
    return Finish(std::move(node), std::move(value));
  }

  bool AddPermute() {
    const Value from = Pick();
    std::vector<int64_t> order(from.sizes.size());
    if (order.size() < 2) return false;
    for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int64_t>(d);
    std::shuffle(order.begin(), order.end(), random_);
    Value value = Float();
    value.dense = false;
    for (int64_t d : order) {
      value.sizes.push_back(from.sizes[d]);
      value.strides.push_back(from.strides[d]);
    }
    value.data.resize(from.data.size());
    ForEach(value.sizes, [&](const Index& i) {
      Index source(i.size());
      for (size_t d = 0; d < order.size(); ++d) source[order[d]] = i[d];
      value.data[Flat(value.sizes, i)] = from.data[Flat(from.sizes, source)];
    });
    v1::Node node = NewNode("aten.permute.default");
    TensorArgument(&node, "self", from);
    IntsArgument(&node, "dims", order);
    return Finish(std::move(node), std::move(value));
  }

  bool AddExpand() {
    const Value from = Pick();
    Value value = Float();
    value.dense = false;
    bool grows = false;
    std::vector<Dim> target = values_[0].sizes;
    if (from.sizes.size() > target.size()) return false;
    size_t lead = target.size() - from.sizes.size();
    for (size_t d = 0; d < target.size(); ++d) {
      Dim own = d < lead ? Dim{1} : from.sizes[d - lead];
      if (!Same(own, target[d]) && !IsOne(own)) return false;
      grows = grows || !Same(own, target[d]);
      value.sizes.push_back(target[d]);
      value.strides.push_back(d < lead || !Same(own, target[d]) ? Dim{0} : from.strides[d - lead]);
    }
    if (!grows) return false;
    value.data.resize(static_cast<size_t>(Numel(target)));
    ForEach(target, [&](const Index& i) { value.data[Flat(target, i)] = At(from, i); });
    v1::Node node = NewNode("aten.expand.default");
    TensorArgument(&node, "self", from);
    SizesArgument(&node, "size", target);
    return Finish(std::move(node), std::move(value));
  }

  // A dimension of fixed size that is large enough to take pieces of.
  int64_t FixedDim(const Value& value, int64_t least) {
    std::vector<int64_t> dims;
    for (size_t d = 0; d < value.sizes.size(); ++d) {
      if (value.sizes[d].expr < 0 && value.sizes[d].value >= least) dims.push_back(static_cast<int64_t>(d));
    }
    return dims.empty() ? -1 : dims[static_cast<size_t>(Draw(0, static_cast<int64_t>(dims.size()) - 1))];
  }

  bool AddSlice() {
    const Value from = Pick();
    int64_t dim = FixedDim(from, 3);
    if (dim < 0) return false;
    int64_t size = from.sizes[dim].value;
    int64_t start = Draw(0, size - 2);
    int64_t end = Draw(start + 1, size);
    Value value = Float();
    value.dense = false;
    value.sizes = from.sizes;
    value.sizes[dim] = {end - start};
    value.strides = from.strides;
    value.data.resize(static_cast<size_t>(Numel(value.sizes)));
    ForEach(value.sizes, [&](const Index& i) {
      Index source = i;
      source[dim] += start;
      value.data[Flat(value.sizes, i)] = from.data[Flat(from.sizes, source)];
    });
    v1::Node node = NewNode("aten.slice.Tensor");
    TensorArgument(&node, "self", from);
    Arg(&node, "dim")->set_as_int(dim);
    Arg(&node, "start")->set_as_int(start);
    Arg(&node, "end")->set_as_int(end);
    return Finish(std::move(node), std::move(value));
  }

  bool AddCat() {
    const Value a = Pick();
    const Value b = Pick();
    if (a.sizes.size() != b.sizes.size() || a.sizes.empty()) return false;
    size_t dim = static_cast<size_t>(Draw(0, static_cast<int64_t>(a.sizes.size()) - 1));
    for (size_t d = 0; d < a.sizes.size(); ++d) {
      if (d != dim && !Same(a.sizes[d], b.sizes[d])) return false;
    }
    std::vector<Dim> sizes = a.sizes;
    sizes[dim] = Plus(a.sizes[dim], b.sizes[dim]);
    Value value = Computed(sizes);
    ForEach(sizes, [&](const Index& i) {
      Index source = i;
      bool first = i[dim] < a.sizes[dim].value;
      if (!first) source[dim] -= a.sizes[dim].value;
      const Value& from = first ? a : b;
      value.data[Flat(sizes, i)] = from.data[Flat(from.sizes, source)];
    });
    v1::Node node = NewNode("aten.cat.default");
    v1::Argument::Tensors* tensors = Arg(&node, "tensors")->mutable_as_tensors();
    tensors->add_values(a.id);
    tensors->add_values(b.id);
    Arg(&node, "dim")->set_as_int(static_cast<int64_t>(dim));
    return Finish(std::move(node), std::move(value));
  }

  bool AddSoftmax() {
    const Value from = Pick();
    if (from.sizes.empty()) return false;
    size_t dim = static_cast<size_t>(Draw(0, static_cast<int64_t>(from.sizes.size()) - 1));
    Value value = Computed(from.sizes);
    std::vector<Dim> kept = from.sizes;
    kept[dim] = {1};
    ForEach(kept, [&](const Index& at) {
      Index i = at;
      double most = -1e300, sum = 0;
      for (i[dim] = 0; i[dim] < from.sizes[dim].value; ++i[dim])
        most = std::max(most, from.data[Flat(from.sizes, i)]);
      for (i[dim] = 0; i[dim] < from.sizes[dim].value; ++i[dim])
        sum += std::exp(from.data[Flat(from.sizes, i)] - most);
      for (i[dim] = 0; i[dim] < from.sizes[dim].value; ++i[dim]) {
        int64_t flat = Flat(from.sizes, i);
        value.data[flat] = std::exp(from.data[flat] - most) / sum;
      }
    });
    v1::Node node = NewNode("aten._softmax.default");
    TensorArgument(&node, "self", from);
    Arg(&node, "dim")->set_as_int(static_cast<int64_t>(dim));
    Arg(&node, "half_to_float")->set_as_bool(false);
    return Finish(std::move(node), std::move(value));
  }

  bool AddCumsum() {
    const Value from = Pick();
    if (from.sizes.empty()) return false;
    size_t dim = static_cast<size_t>(Draw(0, static_cast<int64_t>(from.sizes.size()) - 1));
    Value value = Computed(from.sizes);
    ForEach(from.sizes, [&](const Index& i) {
      double before = 0;
      if (i[dim] > 0) {
        Index previous = i;
        --previous[dim];
        before = value.data[Flat(from.sizes, previous)];
      }
      value.data[Flat(from.sizes, i)] = before + from.data[Flat(from.sizes, i)];
    });
    v1::Node node = NewNode("aten.cumsum.default");
    TensorArgument(&node, "self", from);
    Arg(&node, "dim")->set_as_int(static_cast<int64_t>(dim));
    return Finish(std::move(node), std::move(value));
  }

  bool AddGather() {
    const Value from = Pick();
    int64_t dim = FixedDim(from, 2);
    if (dim < 0) return false;
    const Value& rows = values_[index_value_];
    // index_select takes no negative numbers, index does.
    std::vector<Dim> sizes = from.sizes;
    sizes[dim] = rows.sizes[0];
    Value value = Computed(sizes);
    ForEach(sizes, [&](const Index& i) {
      Index source = i;
      source[dim] = static_cast<int64_t>(rows.data[i[dim]]);
      if (source[dim] < 0) source[dim] += from.sizes[dim].value;
      value.data[Flat(sizes, i)] = from.data[Flat(from.sizes, source)];
    });
    v1::Node node = NewNode("aten.index.Tensor");
    TensorArgument(&node, "self", from);
    v1::Argument::OptionalTensors* indices = Arg(&node, "indices")->mutable_as_optional_tensors();
    for (int64_t d = 0; d < dim; ++d) indices->add_values(-1);
    indices->add_values(rows.id);
    return Finish(std::move(node), std::move(value));
  }

  bool AddMatmul() {
    const Value a = Pick();
    const Value b = Pick();
    if (a.sizes.size() != 2 || b.sizes.size() != 2) return false;
    if (!Same(a.sizes[1], b.sizes[0])) return false;
    Value value = Computed({a.sizes[0], b.sizes[1]});
    for (int64_t i = 0; i < a.sizes[0].value; ++i) {
      for (int64_t j = 0; j < b.sizes[1].value; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.sizes[1].value; ++k) {
          sum += a.data[i * a.sizes[1].value + k] * b.data[k * b.sizes[1].value + j];
        }
        value.data[i * b.sizes[1].value + j] = sum;
      }
    }
    v1::Node node = NewNode("aten.mm.default");
    TensorArgument(&node, "self", a);
    TensorArgument(&node, "mat2", b);
    return Finish(std::move(node), std::move(value));
  }

  bool AddFlip() {
    const Value from = Pick();
    if (from.sizes.empty()) return false;
    size_t dim = static_cast<size_t>(Draw(0, static_cast<int64_t>(from.sizes.size()) - 1));
    Value value = Computed(from.sizes);
    ForEach(from.sizes, [&](const Index& i) {
      Index source = i;
      source[dim] = from.sizes[dim].value - 1 - i[dim];
      value.data[Flat(from.sizes, i)] = from.data[Flat(from.sizes, source)];
    });
    v1::Node node = NewNode("aten.flip.default");
    TensorArgument(&node, "self", from);
    IntsArgument(&node, "dims", {static_cast<int64_t>(dim)});
    return Finish(std::move(node), std::move(value));
  }

  bool AddPad() {
    const Value from = Pick();
    if (from.sizes.empty()) return false;
    int64_t before = Draw(0, 2), after = Draw(1, 2);
    std::vector<Dim> sizes = from.sizes;
    sizes.back() = Plus(sizes.back(), {before + after});
    Value value = Computed(sizes);
    ForEach(sizes, [&](const Index& i) {
      Index source = i;
      source.back() -= before;
      bool inside = source.back() >= 0 && source.back() < from.sizes.back().value;
      value.data[Flat(sizes, i)] = inside ? from.data[Flat(from.sizes, source)] : 0.0;
    });
    v1::Node node = NewNode("aten.constant_pad_nd.default");
    TensorArgument(&node, "self", from);
    IntsArgument(&node, "pad", {before, after});
    return Finish(std::move(node), std::move(value));
  }

  // input.copy_(value of the same sizes), at the end as functionalisation leaves it.
  void MutateInput() {
    for (size_t n = values_.size(); n-- > input_count_;) {
      for (size_t i = 0; i + 1 < input_count_; ++i) {
        const Value to = values_[i];
        const Value from = values_[n];
        if (from.dtype != options_.dtype || to.sizes.size() != from.sizes.size()) continue;
        bool same = true;
        for (size_t d = 0; d < to.sizes.size(); ++d) same = same && Same(to.sizes[d], from.sizes[d]);
        if (!same) continue;
        v1::Node node = NewNode("aten.copy_.default");
        TensorArgument(&node, "self", to);
        TensorArgument(&node, "src", from);
        Value value = to;
        value.data = from.data;
        value.id = next_id_++;
        WriteMeta(value, node.add_results());
        *graph_.add_nodes() = std::move(node);
        mutated_.insert(i);
        result_.mutated[i] = Export(value);
        return;
      }
    }
  }

  void MakeOutputs() {
    std::set<size_t> chosen = {values_.size() - 1};
    for (size_t n = input_count_; n < values_.size(); ++n) {
      if (Chance(0.25)) chosen.insert(n);
    }
    for (size_t n : chosen) {
      // An output that is a view of a mutated input would see the mutation; functionalisation copies it.
      if (n < input_count_ || values_[n].dtype != options_.dtype || (!values_[n].dense && !mutated_.empty()))
        continue;
      graph_.add_outputs()->set_value(values_[n].id);
      result_.outputs.push_back(Export(values_[n]));
    }
  }

  RandomGraphOptions options_;
  std::mt19937_64 random_;
  v1::Graph graph_;
  RandomGraph result_;
  std::vector<Value> values_;
  size_t input_count_ = 0;
  size_t index_value_ = 0;
  uint32_t next_id_ = 0;
  std::set<size_t> mutated_;
};

}  // namespace

RandomGraph MakeRandomGraph(uint64_t seed, const RandomGraphOptions& options) {
  return Generator(seed, options).Run();
}

}  // namespace kiln::testing
