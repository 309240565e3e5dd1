#include "compiler/artifact/matrix_products.h"

#include <optional>
#include <set>
#include <string>

#include "absl/base/casts.h"
#include "absl/strings/string_view.h"
#include "compiler/support/proto_util.h"

namespace kiln {
namespace {

constexpr absl::string_view kAddmmActivation = "aten._addmm_activation.default";

const v1::Argument* Find(const v1::Call& call, absl::string_view name) {
  for (const v1::NamedArgument& argument : call.args()) {
    if (argument.name() == name) return &argument.value();
  }
  return nullptr;
}

// A number that torch's schema has as 1 where it is not given; no value for a symbolic one.
std::optional<double> FactorOf(const v1::Call& call, absl::string_view name) {
  const v1::Argument* argument = Find(call, name);
  if (argument == nullptr) return 1;
  switch (argument->kind_case()) {
    case v1::Argument::kAsInt: return static_cast<double>(argument->as_int());
    case v1::Argument::kAsFloat: return absl::bit_cast<double>(argument->as_float());
    default: return std::nullopt;
  }
}

// The tensor of program buffer `id`, all fixed.
struct Fixed {
  v1::DType dtype;
  std::vector<int64_t> sizes, strides;
};

std::optional<Fixed> FixedBuffer(const v1::Program& program, int64_t id) {
  if (id < 0 || id >= program.buffers_size()) return std::nullopt;
  const v1::ProgramBuffer& buffer = program.buffers(static_cast<int>(id));
  if (buffer.sizes_size() != buffer.strides_size()) return std::nullopt;
  Fixed fixed{buffer.dtype(), {}, {}};
  for (int d = 0; d < buffer.sizes_size(); ++d) {
    if (buffer.sizes(d).has_expr() || buffer.strides(d).has_expr()) return std::nullopt;
    fixed.sizes.push_back(buffer.sizes(d).value());
    fixed.strides.push_back(buffer.strides(d).value());
  }
  return fixed;
}

std::optional<Fixed> FixedArgument(const v1::Program& program, const v1::Call& call, absl::string_view name) {
  const v1::Argument* argument = Find(call, name);
  if (argument == nullptr || argument->kind_case() != v1::Argument::kAsTensor) return std::nullopt;
  return FixedBuffer(program, argument->as_tensor());
}

// False for what is no matrix, nor a batch of them.
bool Describe(const Fixed& tensor, bool batched, v1::MatrixOperand* operand) {
  const size_t first = batched ? 1 : 0;
  if (tensor.sizes.size() != first + 2) return false;
  operand->set_rows(tensor.sizes[first]);
  operand->set_columns(tensor.sizes[first + 1]);
  operand->set_row_stride(tensor.strides[first]);
  operand->set_column_stride(tensor.strides[first + 1]);
  operand->set_batch_stride(batched ? tensor.strides[0] : 0);
  return true;
}

struct Names {
  absl::string_view a, b, c;  // of the factors and of what is added
};

std::optional<Names> NamesOf(absl::string_view target) {
  if (target == "aten.mm.default" || target == "aten.bmm.default") return Names{"self", "mat2", ""};
  if (target == "aten.addmm.default" || target == kAddmmActivation) return Names{"mat1", "mat2", "self"};
  if (target == "aten.baddbmm.default") return Names{"batch1", "batch2", "self"};
  return std::nullopt;
}

// What is added: a row for all of d's rows is a bias. False where the runtime leaves the product to ATen.
bool AddSummand(const v1::Program& program, const v1::Call& call, absl::string_view name, bool batched,
                v1::MatrixProduct* product) {
  const std::optional<double> beta = FactorOf(call, "beta");
  const std::optional<Fixed> c = FixedArgument(program, call, name);
  if (!beta.has_value() || !c.has_value()) return false;
  if (*beta == 0) return true;
  if (c->dtype != product->dtype()) return false;
  if (c->sizes.size() != 1) return Describe(*c, batched, product->mutable_c());
  product->set_bias(true);
  return *beta == 1 && c->sizes[0] == product->d().columns() && (c->sizes[0] <= 1 || c->strides[0] == 1);
}

bool DescribeCall(const v1::Program& program, const v1::Call& call, const v1::Numerics& numerics,
                  v1::MatrixProduct* product) {
  const std::optional<Names> names = NamesOf(call.target());
  if (!names.has_value() || call.results_size() != 1) return false;
  const std::optional<Fixed> a = FixedArgument(program, call, names->a),
                             b = FixedArgument(program, call, names->b),
                             d = FixedBuffer(program, call.results(0));
  if (!a.has_value() || !b.has_value() || !d.has_value()) return false;
  if (a->dtype != d->dtype || b->dtype != d->dtype) return false;
  if (d->dtype != v1::F16 && d->dtype != v1::BF16 && d->dtype != v1::F32) return false;
  const bool batched = d->sizes.size() == 3;
  product->set_dtype(d->dtype);
  product->set_batch(batched ? d->sizes[0] : 1);
  if (!Describe(*a, batched, product->mutable_a()) || !Describe(*b, batched, product->mutable_b()) ||
      !Describe(*d, batched, product->mutable_d())) {
    return false;
  }
  product->set_tf32(d->dtype == v1::F32 && numerics.float32_matmul_precision() != "highest");
  product->set_reduced_sums(true);  // as torch has it unless told otherwise
  if (call.target() == kAddmmActivation) {
    const v1::Argument* gelu = Find(call, "use_gelu");
    product->set_activation(gelu != nullptr && gelu->as_bool() ? v1::ACTIVATION_GELU_TANH
                                                               : v1::ACTIVATION_RELU);
  }
  if (!names->c.empty() && !AddSummand(program, call, names->c, batched, product)) return false;
  return product->batch() > 0 && product->d().rows() > 0 && product->d().columns() > 0 &&
         product->a().columns() > 0;
}

}  // namespace

std::vector<v1::MatrixProduct> MatrixProductsOf(const v1::Program& program, const v1::Numerics& numerics) {
  std::vector<v1::MatrixProduct> products;
  std::set<std::string> known;
  for (const v1::Step& step : program.steps()) {
    v1::MatrixProduct product;
    if (!step.has_call() || !DescribeCall(program, step.call(), numerics, &product)) continue;
    if (known.insert(SerializeDeterministic(product)).second) products.push_back(std::move(product));
  }
  return products;
}

}  // namespace kiln
