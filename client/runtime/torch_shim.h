// ATen's C shim, resolved at run time from the libtorch that the process has loaded already: functions by
// name, and torch's numbers of dtypes and kinds of devices.
//
// Signatures as in torch/csrc/inductor/aoti_torch/c/shim.h, generated/c_shim_cpu.h and
// torch/csrc/stable/c/shim.h, which torch keeps stable.
// A function that one can do without is nullptr where this torch has none: each torch and each kind of device
// has some of the typed calls.
//
// Threads: as a value; its functions as torch's, from any number at once. Ownership: borrowed from the
// process, which never unloads torch. Errors: a function's is a number alone (`what` has words in torch 2.13
// and later).
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "client/runtime/host.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

using TorchError = int32_t;  // 0 is success
using TorchRangeFunction = void (*)(int64_t begin, int64_t end, void* context);

struct TorchShim {
  // UNIMPLEMENTED when no libtorch is loaded, or one without a function that is needed.
  static absl::StatusOr<TorchShim> Find(v1::DeviceType device);

  // What makes handles, which are references to tensors, and releases them.
  struct Handles {
    TorchError (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Tensor*);
    TorchError (*from_blob)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t,
                            int32_t, Tensor*);
    TorchError (*reinterpret)(Tensor, int64_t, const int64_t*, const int64_t*, int64_t, Tensor*);
    TorchError (*new_handle)(Tensor, Tensor*);
    TorchError (*new_undefined)(Tensor*);  // stands for None where an argument is no optional one
    TorchError (*delete_object)(Tensor);
  };
  // What a tensor is, and what it holds.
  struct Tensors {
    TorchError (*data_ptr)(Tensor, void**);
    TorchError (*dim)(Tensor, int64_t*);
    TorchError (*sizes)(Tensor, int64_t**);
    TorchError (*strides)(Tensor, int64_t**);
    TorchError (*dtype)(Tensor, int32_t*);
    TorchError (*device_type)(Tensor, int32_t*);
    TorchError (*copy)(Tensor, Tensor, int32_t);
    TorchError (*item)(Tensor, int64_t*);
    bool (*is_conj)(Tensor);  // at::native::is_conj(const at::Tensor&): a handle is the tensor's address
    bool (*is_neg)(Tensor);
    bool (*is_zero)(Tensor);
  };
  struct Threads {
    TorchError (*parallel_for)(int64_t, int64_t, int64_t, TorchRangeFunction, void*);
    TorchError (*thread_index)(uint32_t*);
    TorchError (*num_threads)(uint32_t*);
  };
  struct Cuda {
    TorchError (*current_device)(int32_t*);
    TorchError (*current_stream)(int32_t, void**);
  };
  struct Gemms {
    TorchError (*mm_out)(Tensor, Tensor, Tensor);
    TorchError (*bmm_out)(Tensor, Tensor, Tensor);
    TorchError (*addmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);
    TorchError (*baddbmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);
    TorchError (*linear)(Tensor, Tensor, Tensor*, const char*, const double**, int64_t, const char**,
                         Tensor*);
  };
  struct Convolution {
    TorchError (*forward)(Tensor, Tensor, Tensor*, const int64_t*, int64_t, const int64_t*, int64_t,
                          const int64_t*, int64_t, int32_t, const int64_t*, int64_t, int64_t, Tensor*);
    TorchError (*backward)(Tensor, Tensor, Tensor, const int64_t**, int64_t, const int64_t*, int64_t,
                           const int64_t*, int64_t, const int64_t*, int64_t, int32_t, const int64_t*, int64_t,
                           int64_t, const int32_t*, int64_t, Tensor*, Tensor*, Tensor*);
  };
  struct Attention {
    TorchError (*flash_cpu)(Tensor, Tensor, Tensor, double, int32_t, Tensor*, double*, Tensor*, Tensor*);
    TorchError (*flash_cpu_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, double, int32_t, Tensor*,
                                     double*, Tensor*, Tensor*, Tensor*);
    TorchError (*efficient)(Tensor, Tensor, Tensor, Tensor*, int32_t, double, int32_t, double*, Tensor*,
                            Tensor*, Tensor*, Tensor*);
    TorchError (*efficient_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                     double, const int32_t*, int64_t, int32_t, double*, Tensor*, Tensor*,
                                     Tensor*, Tensor*);
    TorchError (*cudnn)(Tensor, Tensor, Tensor, Tensor*, int32_t, double, int32_t, int32_t, double*, Tensor*,
                        Tensor*, Tensor*, Tensor*, int64_t*, int64_t*, Tensor*, Tensor*, Tensor*);
    TorchError (*cudnn_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                 Tensor, Tensor, int64_t, int64_t, double, int32_t, double*, Tensor*, Tensor*,
                                 Tensor*);
  };
  // What finds, takes and puts elements by place.
  struct Indexing {
    TorchError (*nonzero)(Tensor, Tensor*);
    TorchError (*masked_select)(Tensor, Tensor, Tensor*);
    TorchError (*masked_scatter)(Tensor, Tensor, Tensor, Tensor*);
    TorchError (*repeat_interleave)(Tensor, int64_t*, Tensor*);
    TorchError (*index)(Tensor, const Tensor**, int64_t, Tensor*);
    TorchError (*index_put)(Tensor, const Tensor**, int64_t, Tensor, int32_t, Tensor*);
  };
  // Torch's numbers of kinds of devices and of dtypes.
  struct Numbers {
    int32_t device = 0;  // of the programs' kind
    int32_t cpu = 0;
    std::array<int32_t, v1::DType_ARRAYSIZE> to_torch = {};
    std::array<v1::DType, 128> from_torch = {};
  };

  void* library = nullptr;  // libtorch_cpu.so, which stays loaded
  const char* (*what)();    // of the thread's last error; torch 2.13 and later
  Handles handles;
  Tensors tensors;
  Threads threads;
  Cuda cuda;  // nullptr where the device is the CPU
  Gemms gemms;
  Convolution convolution;
  Attention attention;
  Indexing indexing;
  Numbers numbers;
};

}  // namespace kiln::runtime
