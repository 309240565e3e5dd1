// The bare calls that gpu_calls.py holds kiln's runtime against: a launch by the driver and a product by cuBLASLt, in a
// loop. The functions come as pointers, so that neither library's headers are needed. Both give the mean seconds a call,
// or -1 when a call failed.
#include <stddef.h>
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

double LaunchSeconds(Launch launch, void* function, void* stream, void** parameters, int count) {
  const double begin = Now();
  for (int i = 0; i < count; ++i) {
    if (launch(function, 1, 1, 1, 64, 1, 1, 0, stream, parameters, NULL) != 0) return -1;
  }
  return (Now() - begin) / count;
}

double ProductSeconds(Matmul matmul, void* handle, void* description, void* layout, void* a, void* b, void* c,
                      void* algorithm, void* stream, int count) {
  const float one = 1, zero = 0;
  const double begin = Now();
  for (int i = 0; i < count; ++i) {
    if (matmul(handle, description, &one, a, layout, b, layout, &zero, c, layout, c, layout, algorithm, NULL, 0,
               stream) != 0) {
      return -1;
    }
  }
  return (Now() - begin) / count;
}
