#include "client/runtime/torch_products.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "client/runtime/memory_range.h"
#include "client/runtime/scratch.h"

namespace kiln::runtime {
namespace {

// Of products in one piece, where a second launch costs the CPU more than the pieces save the GPU.
constexpr int64_t kUnsplitSumMax = 1024;

const TensorMemory* Get(const CallArguments& a, absl::string_view name) {
  const CallValue* value = a.Find(name);
  return value == nullptr ? nullptr : &value->memory;
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

// `batch` 0: one matrix, no dimension for a batch.
bool MatrixOf(const TensorMemory& tensor, int64_t batch, Matrix* matrix) {
  const absl::Span<const int64_t> sizes = tensor.sizes, strides = tensor.strides;
  const size_t first = batch == 0 ? 0 : 1;
  if (sizes.size() != first + 2 || (batch > 0 && sizes[0] != batch)) return false;
  *matrix = {tensor.data,    sizes[first],       sizes[first + 1],
             strides[first], strides[first + 1], batch > 0 ? strides[0] : 0};
  return true;
}

}  // namespace

const absl::flat_hash_map<std::string, TorchProducts::Method>& TorchProducts::Methods() {
  static const auto* table = new absl::flat_hash_map<std::string, Method>{
      {"aten.mm.default", &TorchProducts::Mm},
      {"aten.bmm.default", &TorchProducts::Mm},
      {"aten.addmm.default", &TorchProducts::Addmm},
      {"aten._addmm_activation.default", &TorchProducts::AddmmActivation},
      {"aten.baddbmm.default", &TorchProducts::Baddbmm},
      {"aten.convolution.default", &TorchProducts::Convolution},
  };
  return *table;
}

bool TorchProducts::Knows(const std::string& target) { return Methods().contains(target); }

bool TorchProducts::Call(const std::string& target, const CallArguments& arguments,
                         const MemoryResults& results, CallContext& context) {
  const auto found = Methods().find(target);
  if (found == Methods().end() || results.declared.size() != 1) return false;
  const TensorMemory* declared = results.declared.data();
  if (declared->dtype == v1::DTYPE_UNSPECIFIED) return false;
  return (this->*found->second)(arguments, {results.into ? declared : nullptr, results.made.data(), context});
}

bool TorchProducts::Mm(const CallArguments& a, const Results& r) {
  Product product;
  return Multiply(Get(a, "self"), Get(a, "mat2"), nullptr, product, r);
}

bool TorchProducts::Addmm(const CallArguments& a, const Results& r) {
  return Add(a, "mat1", "mat2", v1::ACTIVATION_NONE, r);
}

// What torch calls GELU here is the one by tanh on a GPU.
bool TorchProducts::AddmmActivation(const CallArguments& a, const Results& r) {
  const CallValue* gelu = a.Find("use_gelu");
  const bool use_gelu = gelu != nullptr && gelu->number != 0;
  return Add(a, "mat1", "mat2", use_gelu ? v1::ACTIVATION_GELU_TANH : v1::ACTIVATION_RELU, r);
}

bool TorchProducts::Baddbmm(const CallArguments& a, const Results& r) {
  return Add(a, "batch1", "batch2", v1::ACTIVATION_NONE, r);
}

bool TorchProducts::Add(const CallArguments& a, absl::string_view first, absl::string_view second,
                        v1::Activation activation, const Results& r) {
  const TensorMemory* self = Get(a, "self");
  Product product;
  product.alpha = Real(a, "alpha", 1);
  product.beta = Real(a, "beta", 1);
  product.activation = activation;
  return self != nullptr && Multiply(Get(a, first), Get(a, second), self, product, r);
}

// Of a product with all but its operands: c may be one row for all of d's, which is a bias.
bool TorchProducts::Multiply(const TensorMemory* a, const TensorMemory* b, const TensorMemory* c,
                             Product& product, const Results& r) {
  if (a == nullptr || b == nullptr || r.into == nullptr) return false;
  const TensorMemory& d = *r.into;
  const bool batched = d.sizes.size() == 3;
  const double beta = product.beta;
  product.beta = 0;
  product.dtype = d.dtype;
  product.batch = batched ? d.sizes[0] : 1;
  if (a->dtype != d.dtype || b->dtype != d.dtype || product.batch == 0) return false;
  const auto matrix = [&](const TensorMemory& tensor, Matrix* to) {
    return MatrixOf(tensor, batched ? product.batch : 0, to);
  };
  if (!matrix(*a, &product.a) || !matrix(*b, &product.b) || !matrix(d, &product.d)) return false;
  if (c != nullptr && beta != 0) {
    if (c->dtype != d.dtype) return false;
    if (c->sizes.size() == 1) {
      const int64_t size = c->sizes[0];
      if (beta != 1 || size != product.d.columns || (size > 1 && c->strides[0] != 1)) return false;
      product.bias = c->data;
    } else {
      if (!matrix(*c, &product.c)) return false;
      product.beta = beta;
    }
  }
  return Run(product, false, r.context);
}

// A window of one point with a stride of one: the product of the weights and each image's points. Images
// stored channel by channel are factors on the right, images stored point by point ones on the left, all of
// the batch at once.
bool TorchProducts::Convolution(const CallArguments& a, const Results& r) {
  const TensorMemory *input = Get(a, "input"), *weight = Get(a, "weight");
  const CallValue *transposed = a.Find("transposed"), *groups = a.Find("groups");
  if (input == nullptr || weight == nullptr || Get(a, "bias") != nullptr) return false;
  if (transposed == nullptr || transposed->number != 0 || groups == nullptr || groups->number != 1)
    return false;
  if (!All(a, "stride", 1) || !All(a, "padding", 0)) return false;
  const absl::Span<const int64_t> sizes = input->sizes, strides = input->strides;
  const absl::Span<const int64_t> window = weight->sizes, steps = weight->strides;
  if (sizes.size() != 4 || window.size() != 4 || window[2] != 1 || window[3] != 1 || window[1] != sizes[1]) {
    return false;
  }
  if (input->dtype != weight->dtype) return false;
  const int64_t images = sizes[0], inputs = sizes[1], outputs = window[0], points = sizes[2] * sizes[3];
  if (images == 0 || inputs == 0 || outputs == 0 || points == 0 || !RowsFollow(sizes, strides)) return false;
  Product product;
  product.dtype = input->dtype;
  std::array<int64_t, 4> result_strides;
  const bool by_points = inputs > 1 && points > 1 && strides[1] == 1;
  if (by_points) {
    if (images > 1 && strides[0] != points * strides[3]) return false;
    result_strides = {points * outputs, 1, sizes[3] * outputs, outputs};
    product.a = {input->data, images * points, inputs, strides[3], 1, 0};
    product.b = {weight->data, inputs, outputs, steps[1], steps[0], 0};
    product.d = {nullptr, images * points, outputs, outputs, 1, 0};
  } else {
    result_strides = {points * outputs, points, sizes[3], 1};
    product.batch = images;
    product.a = {weight->data, outputs, inputs, steps[0], steps[1], 0};
    product.b = {input->data, inputs, points, strides[1], strides[3], strides[0]};
    product.d = {nullptr, outputs, points, points, 1, points * outputs};
  }
  if (r.into != nullptr) {
    for (size_t d = 0; d < result_strides.size(); ++d) {
      if (r.into->sizes[d] > 1 && r.into->strides[d] != result_strides[d]) return false;
    }
    product.d.data = r.into->data;
    return Run(product, true, r.context);
  }
  const auto made = host_.Empty(input->dtype, {images, outputs, sizes[2], sizes[3]}, result_strides);
  if (!made.ok()) return false;
  product.d.data = host_.Data(*made);
  const std::array<int64_t, 4> sizes_made = {images, outputs, sizes[2], sizes[3]};
  const TensorMemory result = {product.d.data, input->dtype, sizes_made, result_strides};
  if (!WillWrite(result, r.context) || !Run(product, true, r.context)) {
    host_.Release(*made);
    return false;
  }
  *r.made = *made;
  return true;
}

bool TorchProducts::Run(Product& product, bool convolution, CallContext& context) {
  if (product.dtype == v1::F32) {
    const std::optional<bool> tf32 = precision_.Tf32(convolution, context);
    if (!tf32.has_value()) return false;
    product.tf32 = *tf32;
  }
  const std::optional<bool> reduced = precision_.ReducedSums(product.dtype);
  if (!reduced.has_value()) return false;
  product.reduced_sums = *reduced;
  product.tuned = context.tuned;
  product.one_launch = !context.recorded && product.a.columns <= kUnsplitSumMax;
  Scratch scratch(host_, context);
  return products_.Run(product, context, [&](size_t bytes) { return scratch.Of(bytes); });
}

}  // namespace kiln::runtime
