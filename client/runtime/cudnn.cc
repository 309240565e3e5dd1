#include "client/runtime/cudnn.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/library_functions.h"

namespace kiln::runtime {
namespace {

constexpr char kName[] = "libcudnn.so.9";

absl::StatusOr<Cudnn> FunctionsOf(void* library) {
  Cudnn found = {};
  LibraryFunctions functions(library);
  functions.Need(found.version, "cudnnGetVersion");
  functions.Need(found.create, "cudnnCreate");
  functions.Need(found.set_stream, "cudnnSetStream");
  functions.Need(found.create_descriptor, "cudnnBackendCreateDescriptor");
  functions.Need(found.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  functions.Need(found.finalize, "cudnnBackendFinalize");
  functions.Need(found.set, "cudnnBackendSetAttribute");
  functions.Need(found.get, "cudnnBackendGetAttribute");
  functions.Need(found.execute, "cudnnBackendExecute");
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: cuDNN lacks ", functions.missing()));
  return found;
}

}  // namespace

absl::StatusOr<Cudnn> FindCudnn() {
  void* const library = dlopen(kName, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr)
    return absl::UnimplementedError("unsupported: cuDNN 9 is not loaded in this process");
  return FunctionsOf(library);
}

absl::StatusOr<Cudnn> LoadCudnn(const std::string& path) {
  void* const library = dlopen(path.empty() ? kName : path.c_str(), RTLD_LAZY);
  if (library == nullptr) return absl::UnimplementedError("unsupported: cuDNN 9 can't be loaded");
  return FunctionsOf(library);
}

}  // namespace kiln::runtime
