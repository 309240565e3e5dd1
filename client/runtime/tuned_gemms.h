// What was measured to be faster than cuBLASLt's own choice, of one program's gemms: another of its
// algorithms, or a kernel of our own.
//
// Ownership: values. Threads: immutable. Errors of Create: INVALID_ARGUMENT for an algorithm that is none,
// or of which there is no object,
// NativeGemm's for a kernel that is none. The library is asked again before an algorithm is used, so a
// wrong one is refused there.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "client/runtime/cublas_lt.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/kernels.h"
#include "client/runtime/native_gemm.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::runtime {

// A gemm as it is measured and looked up, and back, without memory: addresses are nullptr, but c and bias,
// where there are such, stand at address 256.
v1::Gemm Describe(const Gemm& gemm);
Gemm GemmOf(const v1::Gemm& description);

absl::StatusOr<CublasLt::Heuristic> AlgorithmOf(const v1::GemmAlgorithm& algorithm);
v1::GemmAlgorithm Describe(const CublasLt::Heuristic& algorithm);

class TunedGemms {
 public:
  // nullptr where the program has no measurements. `objects` has the images of kernels of our own.
  static absl::StatusOr<std::shared_ptr<const TunedGemms>> Create(const v1::Tuning& tuning,
                                                                  const ObjectMap& objects);

  struct Choice {
    CublasLt::Heuristic algorithm = {};        // where there is no kernel
    std::shared_ptr<const NativeGemm> native;  // shared with the plans that run it
  };
  // nullptr where the library's own choice stands.
  const Choice* Find(const Gemm& gemm) const;
  // Of the cuBLASLt that was measured; algorithms mean nothing to another.
  uint64_t library_version() const { return library_version_; }

 private:
  TunedGemms() = default;

  uint64_t library_version_ = 0;
  absl::flat_hash_map<std::string, Choice> choices_;  // by serialized description
};

}  // namespace kiln::runtime
