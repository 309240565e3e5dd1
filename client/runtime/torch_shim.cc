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
  functions.Need(shim.handles.empty_strided, "aoti_torch_empty_strided");
  functions.Need(shim.handles.from_blob, "aoti_torch_create_tensor_from_blob");
  functions.Need(shim.handles.reinterpret, "aoti_torch__reinterpret_tensor");
  functions.Need(shim.handles.new_handle, "aoti_torch_new_tensor_handle");
  functions.Need(shim.handles.new_undefined, "aoti_torch_new_uninitialized_tensor");
  functions.Need(shim.handles.delete_object, "aoti_torch_delete_tensor_object");
  functions.Need(shim.tensors.data_ptr, "aoti_torch_get_data_ptr");
  functions.Need(shim.tensors.dim, "aoti_torch_get_dim");
  functions.Need(shim.tensors.sizes, "aoti_torch_get_sizes");
  functions.Need(shim.tensors.strides, "aoti_torch_get_strides");
  functions.Need(shim.tensors.dtype, "aoti_torch_get_dtype");
  functions.Need(shim.tensors.device_type, "aoti_torch_get_device_type");
  functions.Need(shim.tensors.copy, "aoti_torch_copy_");
  functions.Need(shim.tensors.item, "aoti_torch_item_int64");
  functions.Need(shim.tensors.is_conj, "_ZN2at6native7is_conjERKNS_6TensorE");
  functions.Need(shim.tensors.is_neg, "_ZN2at6native6is_negERKNS_6TensorE");
  functions.Need(shim.tensors.is_zero, "_ZN2at6native14_is_zerotensorERKNS_6TensorE");
  functions.Need(shim.threads.parallel_for, "torch_parallel_for");
  functions.Need(shim.threads.thread_index, "torch_get_thread_idx");
  functions.Need(shim.threads.num_threads, "torch_get_num_threads");
  functions.Want(shim.what, "torch_exception_get_what_without_backtrace");
}

// Functions of one kind of device have its name in theirs.
void FindTyped(const LibraryFunctions& functions, v1::DeviceType device, TorchShim& shim) {
  const auto want = [&](auto& function, const char* name) {
    const std::string full = absl::StrCat("aoti_torch_", device == v1::CUDA ? "cuda_" : "cpu_", name);
    functions.Want(function, full.c_str());
  };
  want(shim.gemms.mm_out, "mm_out");
  want(shim.gemms.bmm_out, "bmm_out");
  want(shim.gemms.addmm_out, "addmm_out");
  want(shim.gemms.baddbmm_out, "baddbmm_out");
  want(shim.gemms.linear, "_linear_pointwise");
  want(shim.convolution.forward, "convolution");
  want(shim.convolution.backward, "convolution_backward");
  want(shim.attention.flash_cpu, "_scaled_dot_product_flash_attention_for_cpu");
  want(shim.attention.flash_cpu_backward, "_scaled_dot_product_flash_attention_for_cpu_backward");
  want(shim.attention.efficient, "_scaled_dot_product_efficient_attention");
  want(shim.attention.efficient_backward, "_scaled_dot_product_efficient_attention_backward");
  want(shim.attention.cudnn, "_scaled_dot_product_cudnn_attention");
  want(shim.attention.cudnn_backward, "_scaled_dot_product_cudnn_attention_backward");
  want(shim.indexing.nonzero, "nonzero");
  want(shim.indexing.masked_select, "masked_select");
  want(shim.indexing.masked_scatter, "masked_scatter");
  want(shim.indexing.repeat_interleave, "repeat_interleave_Tensor");
  want(shim.indexing.index, "index_Tensor");
  want(shim.indexing.index_put, "index_put");
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
    if (number < 0 || number >= static_cast<int32_t>(shim.numbers.from_torch.size())) {
      return absl::UnimplementedError(absl::StrCat(name, " is out of range"));
    }
    shim.numbers.to_torch[dtype] = number;
    shim.numbers.from_torch[number] = dtype;
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
    functions.Need(shim.cuda.current_device, "aoti_torch_get_current_device_index");
    const char* stream = "aoti_torch_get_current_cuda_stream";
    typed_functions.Want(shim.cuda.current_stream, stream);
    if (shim.cuda.current_stream == nullptr) functions.Need(shim.cuda.current_stream, stream);
  }
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("this torch lacks ", functions.missing()));
  shim.numbers.cpu = cpu_type();
  shim.numbers.device = device == v1::CUDA ? cuda_type() : shim.numbers.cpu;
  return shim;
}

}  // namespace kiln::runtime
