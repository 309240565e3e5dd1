#include "client/runtime/cublas_lt.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/library_functions.h"

namespace kiln::runtime {

absl::StatusOr<CublasLt> FindCublasLt() {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
  }
  if (library == nullptr)
    return absl::UnimplementedError("unsupported: cuBLASLt is not loaded in this process");
  CublasLt found = {};
  LibraryFunctions functions(library);
  functions.Need(found.create, "cublasLtCreate");
  functions.Need(found.destroy, "cublasLtDestroy");
  functions.Need(found.create_operation, "cublasLtMatmulDescCreate");
  functions.Need(found.destroy_operation, "cublasLtMatmulDescDestroy");
  functions.Need(found.set_operation, "cublasLtMatmulDescSetAttribute");
  functions.Need(found.create_matrix, "cublasLtMatrixLayoutCreate");
  functions.Need(found.destroy_matrix, "cublasLtMatrixLayoutDestroy");
  functions.Need(found.set_matrix, "cublasLtMatrixLayoutSetAttribute");
  functions.Need(found.create_preference, "cublasLtMatmulPreferenceCreate");
  functions.Need(found.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  functions.Need(found.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  functions.Need(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  functions.Need(found.check, "cublasLtMatmulAlgoCheck");
  functions.Need(found.configuration, "cublasLtMatmulAlgoConfigGetAttribute");
  functions.Need(found.matmul, "cublasLtMatmul");
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: cuBLASLt lacks ", functions.missing()));
  return found;
}

}  // namespace kiln::runtime
