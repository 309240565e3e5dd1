#include "client/runtime/torch_shim.h"

#include <dlfcn.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/library_functions.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

// Functions that have one name for all kinds of devices.
void FindCommon(LibraryFunctions& functions, TorchShim& shim) {
  functions.Need(shim.empty_strided, "aoti_torch_empty_strided");
  functions.Need(shim.from_blob, "aoti_torch_create_tensor_from_blob");
  functions.Need(shim.reinterpret, "aoti_torch__reinterpret_tensor");
  functions.Need(shim.new_handle, "aoti_torch_new_tensor_handle");
  functions.Need(shim.new_undefined, "aoti_torch_new_uninitialized_tensor");
  functions.Need(shim.delete_object, "aoti_torch_delete_tensor_object");
  functions.Need(shim.data_ptr, "aoti_torch_get_data_ptr");
  functions.Need(shim.dim, "aoti_torch_get_dim");
  functions.Need(shim.sizes, "aoti_torch_get_sizes");
  functions.Need(shim.strides, "aoti_torch_get_strides");
  functions.Need(shim.dtype, "aoti_torch_get_dtype");
  functions.Need(shim.device_type, "aoti_torch_get_device_type");
  functions.Need(shim.copy, "aoti_torch_copy_");
  functions.Need(shim.item, "aoti_torch_item_int64");
  functions.Need(shim.is_conj, "_ZN2at6native7is_conjERKNS_6TensorE");
  functions.Need(shim.is_neg, "_ZN2at6native6is_negERKNS_6TensorE");
  functions.Need(shim.is_zero, "_ZN2at6native14_is_zerotensorERKNS_6TensorE");
  functions.Need(shim.parallel_for, "torch_parallel_for");
  functions.Need(shim.thread_index, "torch_get_thread_idx");
  functions.Need(shim.num_threads, "torch_get_num_threads");
  functions.Want(shim.what, "torch_exception_get_what_without_backtrace");
}

// Functions of one kind of device have its name in theirs.
void FindTyped(const LibraryFunctions& functions, v1::DeviceType device, TorchShim& shim) {
  const auto want = [&](auto& function, const char* name) {
    const std::string full = absl::StrCat("aoti_torch_", device == v1::CUDA ? "cuda_" : "cpu_", name);
    functions.Want(function, full.c_str());
  };
  want(shim.mm_out, "mm_out");
  want(shim.bmm_out, "bmm_out");
  want(shim.addmm_out, "addmm_out");
  want(shim.baddbmm_out, "baddbmm_out");
  want(shim.linear, "_linear_pointwise");
  want(shim.convolution, "convolution");
  want(shim.convolution_backward, "convolution_backward");
  want(shim.attention, "_scaled_dot_product_flash_attention_for_cpu");
  want(shim.attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward");
  want(shim.efficient_attention, "_scaled_dot_product_efficient_attention");
  want(shim.efficient_attention_backward, "_scaled_dot_product_efficient_attention_backward");
  want(shim.cudnn_attention, "_scaled_dot_product_cudnn_attention");
  want(shim.cudnn_attention_backward, "_scaled_dot_product_cudnn_attention_backward");
  want(shim.nonzero, "nonzero");
  want(shim.masked_select, "masked_select");
  want(shim.masked_scatter, "masked_scatter");
  want(shim.repeat_interleave, "repeat_interleave_Tensor");
  want(shim.index, "index_Tensor");
  want(shim.index_put, "index_put");
}

// Torch's numbers of the dtypes.
absl::Status FindDTypes(LibraryFunctions& functions, TorchShim& shim) {
  static constexpr std::pair<v1::DType, const char*> kTypes[] = {
#define KILN_DTYPE(Enum, text, torch, bytes, dtype_class) {v1::Enum, "aoti_torch_dtype_" #torch},
#include "compiler/graph/dtypes.def"
#undef KILN_DTYPE
  };
  for (const auto& [dtype, name] : kTypes) {
    int32_t (*get)() = nullptr;
    functions.Need(get, name);
    if (get == nullptr) break;
    const int32_t number = get();
    if (number < 0 || number >= static_cast<int32_t>(shim.from_torch.size())) {
      return absl::UnimplementedError(absl::StrCat(name, " is out of range"));
    }
    shim.to_torch[dtype] = number;
    shim.from_torch[number] = dtype;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TorchShim> TorchShim::Find(v1::DeviceType device) {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return absl::UnimplementedError("libtorch_cpu.so is not loaded in this process");
  void* typed = device == v1::CUDA ? dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY) : library;
  if (typed == nullptr) return absl::UnimplementedError("this torch has no CUDA");
  TorchShim shim = {};
  shim.library = library;
  LibraryFunctions functions(library), typed_functions(typed);
  FindCommon(functions, shim);
  FindTyped(typed_functions, device, shim);
  KILN_RETURN_IF_ERROR(FindDTypes(functions, shim));
  int32_t (*cpu_type)() = nullptr;
  int32_t (*cuda_type)() = nullptr;
  functions.Need(cpu_type, "aoti_torch_device_type_cpu");
  if (device == v1::CUDA) {
    functions.Need(cuda_type, "aoti_torch_device_type_cuda");
    functions.Need(shim.current_device, "aoti_torch_get_current_device_index");
    const char* stream = "aoti_torch_get_current_cuda_stream";
    typed_functions.Want(shim.current_stream, stream);
    if (shim.current_stream == nullptr) functions.Need(shim.current_stream, stream);
  }
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("this torch lacks ", functions.missing()));
  shim.cpu_number = cpu_type();
  shim.device_number = device == v1::CUDA ? cuda_type() : shim.cpu_number;
  return shim;
}

}  // namespace kiln::runtime
