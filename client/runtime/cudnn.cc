#include "client/runtime/cudnn.h"

#include <dlfcn.h>

#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kiln::runtime {

absl::StatusOr<Cudnn> FindCudnn() {
  void* library = dlopen("libcudnn.so.9", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr)
    return absl::UnimplementedError("unsupported: cuDNN 9 is not loaded in this process");
  Cudnn found = {};
  const char* missing = nullptr;
  const auto need = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  need(found.create, "cudnnCreate");
  need(found.set_stream, "cudnnSetStream");
  need(found.create_descriptor, "cudnnBackendCreateDescriptor");
  need(found.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  need(found.finalize, "cudnnBackendFinalize");
  need(found.set, "cudnnBackendSetAttribute");
  need(found.get, "cudnnBackendGetAttribute");
  need(found.execute, "cudnnBackendExecute");
  if (missing != nullptr) return absl::UnimplementedError(absl::StrCat("unsupported: cuDNN lacks ", missing));
  return found;
}

}  // namespace kiln::runtime
