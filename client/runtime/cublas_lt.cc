#include "client/runtime/cublas_lt.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/library_functions.h"

namespace kiln::runtime {

namespace {

void* Open(int flags) {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    if (library == nullptr) library = dlopen(name, flags);
  }
  return library;
}

absl::StatusOr<CublasLt> FunctionsOf(void* library) {
  CublasLt found = {};
  LibraryFunctions functions(library);
  functions.Need(found.version, "cublasLtGetVersion");
  functions.Need(found.create, "cublasLtCreate");
  functions.Need(found.destroy, "cublasLtDestroy");
  functions.Need(found.operation.create, "cublasLtMatmulDescCreate");
  functions.Need(found.operation.destroy, "cublasLtMatmulDescDestroy");
  functions.Need(found.operation.set, "cublasLtMatmulDescSetAttribute");
  functions.Need(found.matrix.create, "cublasLtMatrixLayoutCreate");
  functions.Need(found.matrix.destroy, "cublasLtMatrixLayoutDestroy");
  functions.Need(found.matrix.set, "cublasLtMatrixLayoutSetAttribute");
  functions.Need(found.preference.create, "cublasLtMatmulPreferenceCreate");
  functions.Need(found.preference.destroy, "cublasLtMatmulPreferenceDestroy");
  functions.Need(found.preference.set, "cublasLtMatmulPreferenceSetAttribute");
  functions.Need(found.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  functions.Need(found.check, "cublasLtMatmulAlgoCheck");
  functions.Need(found.configuration, "cublasLtMatmulAlgoConfigGetAttribute");
  functions.Need(found.matmul, "cublasLtMatmul");
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: cuBLASLt lacks ", functions.missing()));
  return found;
}

}  // namespace

absl::StatusOr<CublasLt> FindCublasLt() {
  void* const library = Open(RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr)
    return absl::UnimplementedError("unsupported: cuBLASLt is not loaded in this process");
  return FunctionsOf(library);
}

absl::StatusOr<CublasLt> LoadCublasLt(const std::string& path) {
  void* const library = path.empty() ? Open(RTLD_LAZY) : dlopen(path.c_str(), RTLD_LAZY);
  if (library == nullptr) return absl::UnimplementedError("unsupported: cuBLASLt can't be loaded");
  return FunctionsOf(library);
}

}  // namespace kiln::runtime
