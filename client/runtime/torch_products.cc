#include "client/runtime/torch_products.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"

namespace kiln::runtime {
namespace {

Tensor Get(const CallArguments& a, absl::string_view name) {
  const CallValue* value = a.Find(name);
  return value == nullptr ? nullptr : value->tensor;
}

double Real(const CallArguments& a, absl::string_view name, double otherwise) {
  const CallValue* value = a.Find(name);
  if (value == nullptr) return otherwise;
  return value->kind == v1::Argument::kAsFloat ? value->real : static_cast<double>(value->number);
}

bool All(const CallArguments& a, absl::string_view name, int64_t wanted) {
  const CallValue* value = a.Find(name);
  return value != nullptr && value->numbers.size() <= 2 &&
         std::all_of(value->numbers.begin(), value->numbers.end(), [&](int64_t n) { return n == wanted; });
}

// Of one image: whether its rows follow each other, so that all its points lie evenly.
bool RowsFollow(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  return sizes[2] == 1 || strides[2] == sizes[3] * strides[3];
}

}  // namespace

bool TorchProducts::Call(const std::string& target, const CallArguments& arguments,
                         absl::Span<Tensor> results, bool into) {
  static const auto* table = new absl::flat_hash_map<std::string, Method>{
      {"aten.mm.default", &TorchProducts::Mm},
      {"aten.bmm.default", &TorchProducts::Mm},
      {"aten.addmm.default", &TorchProducts::Addmm},
      {"aten.baddbmm.default", &TorchProducts::Baddbmm},
      {"aten.convolution.default", &TorchProducts::Convolution},
  };
  const auto found = table->find(target);
  return found != table->end() && (this->*found->second)(arguments, results, into);
}

bool TorchProducts::Mm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
  return into && r.size() == 1 && Multiply(Get(a, "self"), Get(a, "mat2"), nullptr, 1, 0, r[0]);
}

bool TorchProducts::Addmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
  return into && r.size() == 1 && Get(a, "self") != nullptr &&
         Multiply(Get(a, "mat1"), Get(a, "mat2"), Get(a, "self"), Real(a, "alpha", 1), Real(a, "beta", 1),
                  r[0]);
}

bool TorchProducts::Baddbmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
  return into && r.size() == 1 && Get(a, "self") != nullptr &&
         Multiply(Get(a, "batch1"), Get(a, "batch2"), Get(a, "self"), Real(a, "alpha", 1), Real(a, "beta", 1),
                  r[0]);
}

bool TorchProducts::MatrixOf(Tensor tensor, int64_t batch, Matrix* matrix) const {
  const absl::Span<const int64_t> sizes = host_.Sizes(tensor), strides = host_.Strides(tensor);
  const size_t first = batch == 0 ? 0 : 1;  // 0: one matrix, no dimension for a batch
  if (sizes.size() != first + 2 || (batch > 0 && sizes[0] != batch)) return false;
  *matrix = {host_.Data(tensor), sizes[first],       sizes[first + 1],
             strides[first],     strides[first + 1], batch > 0 ? strides[0] : 0};
  return true;
}

// d = alpha * a b + beta * c; c may be one row for all of d's, which is a bias.
bool TorchProducts::Multiply(Tensor a, Tensor b, Tensor c, double alpha, double beta, Tensor d) {
  if (a == nullptr || b == nullptr) return false;
  const absl::Span<const int64_t> sizes = host_.Sizes(d);
  const int64_t batch = sizes.size() == 3 ? sizes[0] : 0;
  Product product;
  product.batch = std::max<int64_t>(batch, 1);
  product.alpha = alpha;
  if (sizes.size() == 3 && batch == 0) return false;
  if (!MatrixOf(a, batch, &product.a) || !MatrixOf(b, batch, &product.b) || !MatrixOf(d, batch, &product.d)) {
    return false;
  }
  const auto dtype = host_.Type(d), a_type = host_.Type(a), b_type = host_.Type(b);
  if (!dtype.ok() || !a_type.ok() || !b_type.ok() || *a_type != *dtype || *b_type != *dtype) return false;
  product.dtype = *dtype;
  if (c != nullptr && beta != 0) {
    const auto c_type = host_.Type(c);
    if (!c_type.ok() || *c_type != *dtype) return false;
    const absl::Span<const int64_t> extent = host_.Sizes(c);
    if (extent.size() == 1) {
      if (beta != 1 || extent[0] != product.d.columns || (extent[0] > 1 && host_.Strides(c)[0] != 1))
        return false;
      product.bias = host_.Data(c);
    } else {
      if (!MatrixOf(c, batch, &product.c)) return false;
      product.beta = beta;
    }
  }
  return Run(product, false);
}

// A window of one point with a stride of one: the product of the weights and each image's points. Images
// stored channel by channel are factors on the right, images stored point by point ones on the left, all of
// the batch at once.
bool TorchProducts::Convolution(const CallArguments& a, absl::Span<Tensor> r, bool into) {
  const Tensor input = Get(a, "input"), weight = Get(a, "weight");
  const CallValue *transposed = a.Find("transposed"), *groups = a.Find("groups");
  if (into || r.size() != 1 || input == nullptr || weight == nullptr || Get(a, "bias") != nullptr)
    return false;
  if (transposed == nullptr || transposed->number != 0 || groups == nullptr || groups->number != 1)
    return false;
  if (!All(a, "stride", 1) || !All(a, "padding", 0)) return false;
  const absl::Span<const int64_t> sizes = host_.Sizes(input), strides = host_.Strides(input);
  const absl::Span<const int64_t> window = host_.Sizes(weight), steps = host_.Strides(weight);
  if (sizes.size() != 4 || window.size() != 4 || window[2] != 1 || window[3] != 1 || window[1] != sizes[1])
    return false;
  const auto dtype = host_.Type(input), weight_type = host_.Type(weight);
  if (!dtype.ok() || !weight_type.ok() || *dtype != *weight_type) return false;
  const int64_t images = sizes[0], inputs = sizes[1], outputs = window[0], points = sizes[2] * sizes[3];
  if (images == 0 || inputs == 0 || outputs == 0 || points == 0 || !RowsFollow(sizes, strides)) return false;
  Product product;
  product.dtype = *dtype;
  std::array<int64_t, 4> result_strides;
  const bool by_points = inputs > 1 && points > 1 && strides[1] == 1;
  if (by_points) {
    if (images > 1 && strides[0] != points * strides[3]) return false;
    result_strides = {points * outputs, 1, sizes[3] * outputs, outputs};
    product.a = {host_.Data(input), images * points, inputs, strides[3], 1, 0};
    product.b = {host_.Data(weight), inputs, outputs, steps[1], steps[0], 0};
    product.d = {nullptr, images * points, outputs, outputs, 1, 0};
  } else {
    result_strides = {points * outputs, points, sizes[3], 1};
    product.batch = images;
    product.a = {host_.Data(weight), outputs, inputs, steps[0], steps[1], 0};
    product.b = {host_.Data(input), inputs, points, strides[1], strides[3], strides[0]};
    product.d = {nullptr, outputs, points, points, 1, points * outputs};
  }
  const auto made = host_.Empty(*dtype, {images, outputs, sizes[2], sizes[3]}, result_strides);
  if (!made.ok()) return false;
  product.d.data = host_.Data(*made);
  if (!Run(product, true)) {
    host_.Release(*made);
    return false;
  }
  r[0] = *made;
  return true;
}

bool TorchProducts::Run(Product& product, bool convolution) {
  if (product.dtype == v1::F32) {
    const std::optional<bool> tf32 = precision_.Tf32(convolution);
    if (!tf32.has_value()) return false;
    product.tf32 = *tf32;
  }
  const std::optional<bool> reduced = precision_.ReducedSums(product.dtype);
  if (!reduced.has_value()) return false;
  product.reduced_sums = *reduced;
  const auto call = host_.Begin();
  if (!call.ok()) return false;
  Tensor scratch =
      nullptr;  // given back to the stream's memory at once: what comes next runs after this product
  const bool done = products_.Run(product, *call, [&](size_t bytes) -> void* {
    const auto made = host_.Empty(v1::U8, {static_cast<int64_t>(bytes)}, {1});
    if (!made.ok()) return nullptr;
    scratch = *made;
    return host_.Data(scratch);
  });
  if (scratch != nullptr) host_.Release(scratch);
  return done;
}

}  // namespace kiln::runtime
