#include "client/runtime/tuned_products.h"

#include <cstring>
#include <utility>

#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{256});

void Write(const Matrix& matrix, v1::MatrixOperand* to) {
  to->set_rows(matrix.rows);
  to->set_columns(matrix.columns);
  to->set_row_stride(matrix.row_stride);
  to->set_column_stride(matrix.column_stride);
  to->set_batch_stride(matrix.batch_stride);
}

Matrix Read(const v1::MatrixOperand& operand) {
  return {nullptr,
          operand.rows(),
          operand.columns(),
          operand.row_stride(),
          operand.column_stride(),
          operand.batch_stride()};
}

}  // namespace

v1::MatrixProduct Describe(const Product& product) {
  v1::MatrixProduct description;
  description.set_dtype(product.dtype);
  description.set_batch(product.batch);
  Write(product.a, description.mutable_a());
  Write(product.b, description.mutable_b());
  if (product.c.data != nullptr) Write(product.c, description.mutable_c());
  Write(product.d, description.mutable_d());
  description.set_bias(product.bias != nullptr);
  description.set_tf32(product.tf32);
  description.set_reduced_sums(product.reduced_sums);
  description.set_activation(product.activation);
  return description;
}

Product ProductOf(const v1::MatrixProduct& description) {
  Product product;
  product.dtype = description.dtype();
  product.batch = description.batch();
  product.a = Read(description.a());
  product.b = Read(description.b());
  product.d = Read(description.d());
  if (description.has_c()) {
    product.c = Read(description.c());
    product.c.data = kSomewhere;
    product.beta = 1;
  }
  if (description.bias()) product.bias = kSomewhere;
  product.tf32 = description.tf32();
  product.reduced_sums = description.reduced_sums();
  product.activation = description.activation();
  return product;
}

absl::StatusOr<CublasLt::Heuristic> AlgorithmOf(const v1::ProductAlgorithm& algorithm) {
  CublasLt::Heuristic made = {};
  if (algorithm.data().size() != sizeof made.algorithm) {
    return absl::InvalidArgumentError("a product's algorithm is not as long as cuBLASLt's are");
  }
  std::memcpy(&made.algorithm, algorithm.data().data(), sizeof made.algorithm);
  made.workspace = algorithm.workspace_bytes();
  return made;
}

v1::ProductAlgorithm Describe(const CublasLt::Heuristic& algorithm) {
  v1::ProductAlgorithm description;
  description.set_data(&algorithm.algorithm, sizeof algorithm.algorithm);
  description.set_workspace_bytes(algorithm.workspace);
  return description;
}

absl::StatusOr<std::shared_ptr<const TunedProducts>> TunedProducts::Create(const v1::Tuning& tuning,
                                                                           const ObjectMap& objects) {
  if (tuning.measurements().empty()) return nullptr;
  std::shared_ptr<TunedProducts> tuned(new TunedProducts);
  tuned->library_version_ = tuning.gpu().cublas_lt_version();
  for (const v1::Measurement& measured : tuning.measurements()) {
    if (!measured.tunable().has_product() || !measured.has_winner()) continue;
    const v1::MatrixProduct& product = measured.tunable().product();
    Choice& choice = tuned->choices_[SerializeDeterministic(product)];
    if (measured.winner().has_native()) {
      const v1::NativeKernel& native = measured.winner().native();
      const auto image = objects.find(native.object().digest());
      if (image == objects.end()) return absl::InvalidArgumentError("a product's kernel is not there");
      KILN_ASSIGN_OR_RETURN(choice.native, NativeProduct::Create(native, *image->second, product));
    } else {
      KILN_ASSIGN_OR_RETURN(choice.algorithm, AlgorithmOf(measured.winner().algorithm()));
    }
  }
  return tuned;
}

const TunedProducts::Choice* TunedProducts::Find(const Product& product) const {
  const auto found = choices_.find(SerializeDeterministic(Describe(product)));
  return found == choices_.end() ? nullptr : &found->second;
}

}  // namespace kiln::runtime
