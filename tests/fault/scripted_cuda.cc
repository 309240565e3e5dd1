// A driver, a cuBLASLt and a cuDNN in one library, for kiln-tuner without a GPU: memory is the host's, a
// gemm or convolution takes as long as its algorithm or engine says, and some do wrong. Only what
// client/tuner and client/runtime call of them.
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "client/runtime/cublas_lt.h"
#include "tests/unit/cudnn_stand_in.h"

namespace {

using kiln::runtime::CublasLt;

enum Algorithm : uint64_t { kDefault, kFaster, kWrong, kBeyond, kUnfinished, kRefused, kAlgorithms };

// Of a kernel: its "threads".
enum Schedule : uint64_t { kPlanned = 0, kQuicker = 1, kOther = 2, kOver = 4, kShort = 8, kFailing = 16 };
constexpr int kElements = 1000;

double now_us = 0;  // of the "GPU"

struct Described {
  int64_t rows = 0, columns = 0, leading = 0, offset = 0;
  int32_t transposed[2] = {0, 0}, count = 1;
};
Described& Of(void* descriptor) { return *static_cast<Described*>(descriptor); }
int Make(void** to) {
  *to = new Described;
  return 0;
}

// The stand-in, with an engine for each kind of algorithm.
const kiln::runtime::Cudnn& Dnn() {
  static const kiln::runtime::Cudnn library = [] {
    kiln::runtime::fake.engines.assign(kAlgorithms, {});
    kiln::runtime::fake.engines[kRefused].runs = false;
    return kiln::runtime::Library();
  }();
  return library;
}

double MicrosecondsOf(uint64_t kind) { return kind == kDefault ? 10 : kind == kFaster ? 8 : 1; }

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int size, int) { return strncpy(name, "host", size), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  return *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1 << 20, 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{1} << 30, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &now_us, 0; }
int cuCtxGetCurrent(void** context) { return *context = &now_us, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  return *address = reinterpret_cast<uint64_t>(aligned_alloc(256, (bytes + 255) / 256 * 256)), 0;
}
int cuMemFree_v2(uint64_t address) { return free(reinterpret_cast<void*>(address)), 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  return memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  return memcpy(to, reinterpret_cast<void*>(from), bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
  now_us += 1 + static_cast<double>(bytes) / (1 << 20);
  return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
  return memset(reinterpret_cast<void*>(to), value, bytes), 0;
}
int cuStreamCreate(void** stream, unsigned) { return *stream = &now_us, 0; }
int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = new double(0), 0; }
int cuEventRecord(void* event, void*) { return *static_cast<double*>(event) = now_us, 0; }
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = static_cast<float>((*static_cast<double*>(to) - *static_cast<double*>(from)) / 1e3);
  return 0;
}
int cuGetErrorString(int, const char** text) { return *text = "an error", 0; }
// A module is the number in "schedule N", the PTX of scripted_worker.cc's kernels.
int cuModuleLoadData(void** module, const void* image) {
  uint64_t schedule = 0;
  if (sscanf(static_cast<const char*>(image), "schedule %" SCNu64, &schedule) != 1) return 1;
  return *module = new uint64_t(schedule), 0;
}
int cuModuleUnload(void* module) { return delete static_cast<uint64_t*>(module), 0; }
int cuModuleGetFunction(void** function, void* module, const char*) { return *function = module, 0; }
// The second buffer is twice the first.
int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void** parameters, void**) {
  const Schedule kind = *static_cast<Schedule*>(function);
  if (kind == kFailing) return 700;
  const float* const from = *static_cast<float**>(parameters[0]);
  float* const to = *static_cast<float**>(parameters[1]);
  for (int i = 0; i < kElements; ++i) {
    if (i < kElements - 1 || kind != kShort) to[i] = 2 * from[i] + (kind == kOther && i == 3 ? 1 : 0);
  }
  if (kind == kOver) to[-1] = 0;
  now_us += kind == kPlanned ? 10 : kind == kQuicker ? 8 : 1;
  return 0;
}

size_t cublasLtGetVersion() { return 7; }
int cublasLtCreate(void** handle) { return Make(handle); }
int cublasLtDestroy(void*) { return 0; }
int cublasLtMatmulDescCreate(void** to, int, int) { return Make(to); }
int cublasLtMatmulDescDestroy(void* d) { return delete &Of(d), 0; }
int cublasLtMatmulDescSetAttribute(void* d, int attribute, const void* value, size_t bytes) {
  if (attribute == CublasLt::kTransA) memcpy(&Of(d).transposed[0], value, bytes);
  if (attribute == CublasLt::kTransB) memcpy(&Of(d).transposed[1], value, bytes);
  return 0;
}
int cublasLtMatrixLayoutCreate(void** to, int, uint64_t rows, uint64_t columns, int64_t leading) {
  Make(to);
  Of(*to).rows = static_cast<int64_t>(rows);
  Of(*to).columns = static_cast<int64_t>(columns);
  Of(*to).leading = leading;
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* d) { return delete &Of(d), 0; }
int cublasLtMatrixLayoutSetAttribute(void* d, int attribute, const void* value, size_t bytes) {
  if (attribute == CublasLt::kBatchCount) return memcpy(&Of(d).count, value, bytes), 0;
  return memcpy(&Of(d).offset, value, bytes), 0;
}
int cublasLtMatmulPreferenceCreate(void** to) { return Make(to); }
int cublasLtMatmulPreferenceDestroy(void* d) { return delete &Of(d), 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int wanted,
                                   CublasLt::Heuristic* found, int* count) {
  *count = std::min<int>(wanted, kAlgorithms);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algorithm.data[0] = static_cast<uint64_t>(i);
  }
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const CublasLt::Algorithm*,
                            CublasLt::Heuristic* result) {
  return *result = {}, 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const CublasLt::Algorithm*, int, void*, size_t, size_t*) {
  return 7;
}

int cublasLtMatmul(void*, void* operation, const void*, const void* a, void* a_layout, const void* b,
                   void* b_layout, const void*, const void*, void*, void* d, void* d_layout,
                   const CublasLt::Algorithm* algorithm, void*, size_t, void*) {
  const uint64_t kind = algorithm->data[0];
  if (kind == kRefused) return 7;
  const Described &op = Of(operation), &al = Of(a_layout), &bl = Of(b_layout), &dl = Of(d_layout);
  const int64_t depth = op.transposed[0] ? al.rows : al.columns;
  for (int64_t n = 0; n < dl.count; ++n) {
    const float *first = static_cast<const float*>(a) + n * al.offset,
                *second = static_cast<const float*>(b) + n * bl.offset;
    float* const to = static_cast<float*>(d) + n * dl.offset;
    for (int64_t j = 0; j < dl.columns; ++j) {
      for (int64_t i = 0; i < dl.rows; ++i) {
        float sum = kind == kWrong && n + i + j == 0 ? 1 : 0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += (op.transposed[0] ? first[k + i * al.leading] : first[i + k * al.leading]) *
                 (op.transposed[1] ? second[j + k * bl.leading] : second[k + j * bl.leading]);
        }
        if (kind != kUnfinished || n + i + j > 0) to[i + j * dl.leading] = sum;
      }
    }
  }
  if (kind == kBeyond) static_cast<float*>(d)[-1] = 0;
  now_us += MicrosecondsOf(kind);
  return 0;
}

size_t cudnnGetVersion() { return Dnn().version(); }
int cudnnCreate(void** handle) { return Dnn().create(handle); }
int cudnnSetStream(void* handle, void* stream) { return Dnn().set_stream(handle, stream); }
int cudnnBackendCreateDescriptor(int kind, void** to) { return Dnn().create_descriptor(kind, to); }
int cudnnBackendDestroyDescriptor(void* d) { return Dnn().destroy_descriptor(d); }
int cudnnBackendFinalize(void* d) { return Dnn().finalize(d); }
int cudnnBackendSetAttribute(void* d, int attribute, int type, int64_t count, const void* values) {
  return Dnn().set(d, attribute, type, count, values);
}
int cudnnBackendGetAttribute(void* d, int attribute, int type, int64_t wanted, int64_t* count, void* values) {
  return Dnn().get(d, attribute, type, wanted, count, values);
}
int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  if (const int failed = Dnn().execute(handle, plan, pack); failed != 0) return failed;
  const auto kind = static_cast<uint64_t>(kiln::runtime::fake.last_engine);
  float* const result = kiln::runtime::fake.last_result;
  if (kind == kWrong) result[0] += 1;
  if (kind == kUnfinished) memset(result, 0xFF, sizeof *result);
  if (kind == kBeyond) result[-1] = 0;
  now_us += MicrosecondsOf(kind);
  return 0;
}

}  // extern "C"
