// The NVIDIA driver, found at run time: what the runtime needs of libcuda.so.1.
//
// One table for the process, never unloaded. Threads: all functions may be called from any thread; a context
// is current per thread. Errors: UNIMPLEMENTED without a driver, INTERNAL with the driver's words for the
// rest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln::runtime {

// cuda.h's functions, in the versions that its names stand for.
struct CudaDriver {
  using Result = int;  // CUresult; 0 is success
  using Context = void*;
  using Module = void*;
  using Function = void*;

  Result (*load)(Module*, const void* image);
  Result (*unload)(Module);
  Result (*function)(Function*, Module, const char* name);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                   void* stream, void** parameters, void** extra);
  Result (*error)(Result, const char** text);
  Result (*device)(int* device, int ordinal);
  Result (*retain_context)(Context*, int device);
  Result (*current_context)(Context*);
  Result (*set_context)(Context);
  Result (*wait)(void* stream);                       // for all that was launched on it
  Result (*is_capturing)(void* stream, int* status);  // 0: it is not
  // Of a stream that is captured; nullptr where the driver is older.
  Result (*capture_info)(void* stream, int* status, uint64_t* id, void** graph, void* const** nodes,
                         size_t* count);
  Result (*capture_dependencies)(void* stream, void** nodes, size_t count, unsigned flags);

  absl::Status Check(Result result, absl::string_view what) const {
    return result == 0 ? absl::OkStatus() : Error(result, what);
  }
  absl::Status Error(Result result, absl::string_view what) const;
};

const absl::StatusOr<CudaDriver>& TheCudaDriver();

// Makes the device's primary context, which torch uses too, current on this thread: torch itself does so only
// at its first CUDA call there.
absl::Status UseCudaContext(const CudaDriver& driver, int32_t device);

}  // namespace kiln::runtime
