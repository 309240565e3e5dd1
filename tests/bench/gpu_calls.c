// The bare calls that gpu_calls.py holds kiln's runtime against: a launch by the driver, a gemm by cuBLASLt and a
// tensor of torch's allocator, in a loop, the first two alone or in turn: a call after another library's takes longer
// than after itself. The functions come as pointers, so that neither library's headers are needed. Gives the seconds of
// the loop, or -1 when a call failed.
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*Launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                      void** extra);
typedef int (*Matmul)(void* handle, void* description, const void* alpha, const void* a, void* layout_a, const void* b,
                      void* layout_b, const void* beta, const void* c, void* layout_c, void* d, void* layout_d,
                      const void* algorithm, void* workspace, size_t workspace_bytes, void* stream);

static double Now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// What a launch and a gemm are called with, in the order of cuLaunchKernel's and cublasLtMatmul's own.
struct LaunchCall {
  Launch function;
  void* kernel;
  void** parameters;
};
struct GemmCall {
  Matmul function;
  void *handle, *description, *layout, *a, *b, *c, *algorithm;
};

static int LaunchOnce(const struct LaunchCall* call, void* stream) {
  return call->function(call->kernel, 1, 1, 1, 64, 1, 1, 0, stream, call->parameters, NULL);
}

static int GemmOnce(const struct GemmCall* call, void* stream) {
  const float one = 1, zero = 0;
  return call->function(call->handle, call->description, &one, call->a, call->layout, call->b, call->layout, &zero,
                        call->c, call->layout, call->c, call->layout, call->algorithm, NULL, 0, stream);
}

// Each of `count` rounds makes the calls that are there, the gemm first.
double BareSeconds(const struct LaunchCall* launch, const struct GemmCall* gemm, void* stream, int count) {
  const double begin = Now();
  for (int i = 0; i < count; ++i) {
    if (gemm != NULL && GemmOnce(gemm, stream) != 0) return -1;
    if (launch != NULL && LaunchOnce(launch, stream) != 0) return -1;
  }
  return Now() - begin;
}

// As aoti_torch_empty_strided.
typedef int (*Empty)(int64_t dimensions, const int64_t* sizes, const int64_t* strides, int dtype, int device_type,
                     int device, void** tensor);

// Makes `count` tensors of `elements` numbers each; gives the seconds of all.
double TensorSeconds(Empty empty, int64_t elements, int dtype, int device_type, int count, void** tensors) {
  const int64_t stride = 1;
  const double begin = Now();
  for (int i = 0; i < count; ++i) {
    if (empty(1, &elements, &stride, dtype, device_type, 0, &tensors[i]) != 0) return -1;
  }
  return Now() - begin;
}
