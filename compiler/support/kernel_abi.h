/* The binary contract between generated CPU kernels and whoever runs them (the client's runtime,
 * the tuner, the tests). Plain C; the layout is part of KernelKey through KILN_KERNEL_ABI_VERSION.
 *
 * A kernel is `int32_t k(const KilnArgs*, int64_t begin, int64_t end, uint32_t thread)` and runs the
 * units [begin, end) of kernel.proto's KernelSchedule. Units are independent; their results do not
 * depend on how they are spread over threads. It returns 0, or the code that it also wrote to
 * `status` (first writer wins, the caller passes code == 0). It calls nothing, allocates nothing, and
 * assumes no alignment beyond the element's own. */
#ifndef KILN_COMPILER_SUPPORT_KERNEL_ABI_H_
#define KILN_COMPILER_SUPPORT_KERNEL_ABI_H_

#include <stdint.h>

#define KILN_KERNEL_ABI_VERSION 2

enum KilnStatusCode {
  KILN_OK = 0,
  KILN_INDEX_OUT_OF_RANGE = 1, /* value: the index; bound: the size of the dimension */
  KILN_INTEGER_DIVISION_BY_ZERO = 2
};

typedef struct KilnStatus {
  int32_t code;
  int32_t op; /* id of the loop op that failed */
  int64_t value;
  int64_t bound;
} KilnStatus;

typedef struct KilnArgs {
  uint32_t struct_size;
  uint32_t buffer_count;
  void* const* buffers;   /* first element of each Kernel.buffers entry */
  const int64_t* symbols; /* Kernel symbols */
  KilnStatus* status;
} KilnArgs;

typedef int32_t (*KilnKernel)(const KilnArgs* args, int64_t begin, int64_t end, uint32_t thread);

#endif
