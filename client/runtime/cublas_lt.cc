#include "client/runtime/cublas_lt.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kiln::runtime {

absl::StatusOr<CublasLt> FindCublasLt() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
  }
  if (library == nullptr)
    return absl::UnimplementedError("unsupported: cuBLASLt is not loaded in this process");
  CublasLt found = {};
  const char* missing = nullptr;
  const auto need = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  need(found.create, "cublasLtCreate");
  need(found.destroy, "cublasLtDestroy");
  need(found.create_operation, "cublasLtMatmulDescCreate");
  need(found.destroy_operation, "cublasLtMatmulDescDestroy");
  need(found.set_operation, "cublasLtMatmulDescSetAttribute");
  need(found.create_matrix, "cublasLtMatrixLayoutCreate");
  need(found.destroy_matrix, "cublasLtMatrixLayoutDestroy");
  need(found.set_matrix, "cublasLtMatrixLayoutSetAttribute");
  need(found.create_preference, "cublasLtMatmulPreferenceCreate");
  need(found.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  need(found.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  need(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  need(found.check, "cublasLtMatmulAlgoCheck");
  need(found.configuration, "cublasLtMatmulAlgoConfigGetAttribute");
  need(found.matmul, "cublasLtMatmul");
  if (missing != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: cuBLASLt lacks ", missing));
  return found;
}

}  // namespace kiln::runtime
