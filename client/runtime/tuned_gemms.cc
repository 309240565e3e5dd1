#include "client/runtime/tuned_gemms.h"

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

v1::Gemm Describe(const Gemm& gemm) {
  v1::Gemm description;
  description.set_dtype(gemm.dtype);
  description.set_batch(gemm.batch);
  Write(gemm.a, description.mutable_a());
  Write(gemm.b, description.mutable_b());
  if (gemm.c.data != nullptr) Write(gemm.c, description.mutable_c());
  Write(gemm.d, description.mutable_d());
  description.set_bias(gemm.bias != nullptr);
  description.set_tf32(gemm.tf32);
  description.set_reduced_sums(gemm.reduced_sums);
  description.set_activation(gemm.activation);
  return description;
}

Gemm GemmOf(const v1::Gemm& description) {
  Gemm gemm;
  gemm.dtype = description.dtype();
  gemm.batch = description.batch();
  gemm.a = Read(description.a());
  gemm.b = Read(description.b());
  gemm.d = Read(description.d());
  if (description.has_c()) {
    gemm.c = Read(description.c());
    gemm.c.data = kSomewhere;
    gemm.beta = 1;
  }
  if (description.bias()) gemm.bias = kSomewhere;
  gemm.tf32 = description.tf32();
  gemm.reduced_sums = description.reduced_sums();
  gemm.activation = description.activation();
  return gemm;
}

absl::StatusOr<CublasLt::Heuristic> AlgorithmOf(const v1::GemmAlgorithm& algorithm) {
  CublasLt::Heuristic made = {};
  if (algorithm.data().size() != sizeof made.algorithm) {
    return absl::InvalidArgumentError("a gemm's algorithm is not as long as cuBLASLt's are");
  }
  std::memcpy(&made.algorithm, algorithm.data().data(), sizeof made.algorithm);
  made.workspace = algorithm.workspace_bytes();
  return made;
}

v1::GemmAlgorithm Describe(const CublasLt::Heuristic& algorithm) {
  v1::GemmAlgorithm description;
  description.set_data(&algorithm.algorithm, sizeof algorithm.algorithm);
  description.set_workspace_bytes(algorithm.workspace);
  return description;
}

absl::StatusOr<std::shared_ptr<const TunedGemms>> TunedGemms::Create(const v1::Tuning& tuning,
                                                                     const ObjectMap& objects) {
  if (tuning.measurements().empty()) return nullptr;
  std::shared_ptr<TunedGemms> tuned(new TunedGemms);
  tuned->library_version_ = tuning.gpu().cublas_lt_version();
  for (const v1::Measurement& measured : tuning.measurements()) {
    if (!measured.tunable().has_gemm() || !measured.has_winner()) continue;
    const v1::Gemm& gemm = measured.tunable().gemm();
    Choice& choice = tuned->choices_[SerializeDeterministic(gemm)];
    if (measured.winner().has_native()) {
      const v1::NativeKernel& native = measured.winner().native();
      const auto image = objects.find(native.object().digest());
      if (image == objects.end()) return absl::InvalidArgumentError("a gemm's kernel is not there");
      KILN_ASSIGN_OR_RETURN(choice.native, NativeGemm::Create(native, *image->second, gemm));
    } else {
      KILN_ASSIGN_OR_RETURN(choice.algorithm, AlgorithmOf(measured.winner().algorithm()));
    }
  }
  return tuned;
}

const TunedGemms::Choice* TunedGemms::Find(const Gemm& gemm) const {
  const auto found = choices_.find(SerializeDeterministic(Describe(gemm)));
  return found == choices_.end() ? nullptr : &found->second;
}

}  // namespace kiln::runtime
