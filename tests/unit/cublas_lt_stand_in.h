// A stand-in for cuBLASLt that multiplies on the CPU as its descriptors say: matrices by columns, F32 only,
// by algorithms that a test names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "client/runtime/cublas_lt.h"

namespace kiln::runtime {

struct FakeDescriptor {
  int kind = 0;  // compute type of an operation, data type of a matrix
  int64_t rows = 0, columns = 0, leading = 0, offset = 0;
  int32_t transposed[2] = {0, 0}, count = 1;
  uint32_t epilogue = CublasLt::kPlain, reductions = 0;
  const float* bias = nullptr;
  uint32_t alignment = 0;
};

constexpr uint64_t kVersion = 7;
constexpr int kOffered = 3;

struct FakeLibrary {
  int asked = 0, launched = 0, live = 0;
  int last_compute = 0;
  uint32_t last_reductions = 0;
  bool takes_bias = true;  // the plain algorithm with a bias or an activation
  bool knows = true;       // an algorithm at all
  int32_t splits = 1;      // of the plain algorithm
  size_t workspace = 0;
  void* last_workspace = nullptr;
  uint64_t last_algorithm = 0;
  bool takes_any = true;  // any algorithm, without a bias or an activation
};
inline FakeLibrary fake;

inline FakeDescriptor& Of(CublasLt::Descriptor d) { return *static_cast<FakeDescriptor*>(d); }
inline int Make(CublasLt::Descriptor* to) {
  ++fake.live;
  *to = new FakeDescriptor;
  return 0;
}
inline int Destroy(CublasLt::Descriptor d) {
  --fake.live;
  delete static_cast<FakeDescriptor*>(d);
  return 0;
}
template <typename T>
int Set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return 7;
  std::memcpy(static_cast<void*>(&to), value, bytes);
  return 0;
}

inline float GeluByTanh(float x) {
  return x / 2 * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

inline int Multiply(void*, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                    void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                    const CublasLt::Algorithm* algorithm, void* workspace, size_t bytes, void*) {
  if (bytes != fake.workspace) return 7;
  ++fake.launched;
  fake.last_workspace = workspace;
  fake.last_algorithm = algorithm->data[1];
  const FakeDescriptor &op = Of(operation), &al = Of(a_layout), &bl = Of(b_layout), &cl = Of(c_layout),
                       &dl = Of(d_layout);
  const int64_t depth = op.transposed[0] ? al.rows : al.columns;
  for (int64_t n = 0; n < dl.count; ++n) {
    const float* first = static_cast<const float*>(a) + n * al.offset;
    const float* second = static_cast<const float*>(b) + n * bl.offset;
    const float* added = static_cast<const float*>(c) + n * cl.offset;
    float* to = static_cast<float*>(d) + n * dl.offset;
    for (int64_t j = 0; j < dl.columns; ++j) {
      for (int64_t i = 0; i < dl.rows; ++i) {
        float sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += (op.transposed[0] ? first[k + i * al.leading] : first[i + k * al.leading]) *
                 (op.transposed[1] ? second[j + k * bl.leading] : second[k + j * bl.leading]);
        }
        sum *= *static_cast<const float*>(alpha);
        const float factor = *static_cast<const float*>(beta);
        if (factor != 0) sum += factor * added[i + j * cl.leading];
        if (op.epilogue & CublasLt::kBias) sum += op.bias[i];
        if (op.epilogue & CublasLt::kRelu) sum = std::max(sum, 0.0f);
        if (op.epilogue & CublasLt::kGelu) sum = GeluByTanh(sum);
        to[i + j * dl.leading] = sum;
      }
    }
  }
  return 0;
}

inline CublasLt Library() {
  CublasLt library = {};
  library.create = Make;
  library.destroy = Destroy;
  library.operation.create = [](void** to, int compute, int) {
    Make(to);
    Of(*to).kind = compute;
    return 0;
  };
  library.operation.set = [](void* d, int attribute, const void* value, size_t bytes) {
    switch (attribute) {
      case CublasLt::kTransA: return Set(Of(d).transposed[0], value, bytes);
      case CublasLt::kTransB: return Set(Of(d).transposed[1], value, bytes);
      case CublasLt::kEpilogue: return Set(Of(d).epilogue, value, bytes);
      case CublasLt::kBiasPointer: return Set(Of(d).bias, value, bytes);
      default: return 7;
    }
  };
  library.matrix.create = [](void** to, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    Make(to);
    FakeDescriptor& matrix = Of(*to);
    matrix.kind = type;
    matrix.rows = static_cast<int64_t>(rows);
    matrix.columns = static_cast<int64_t>(columns);
    matrix.leading = leading;
    return leading >= matrix.rows ? 0 : 7;
  };
  library.matrix.set = [](void* d, int attribute, const void* value, size_t bytes) {
    return attribute == CublasLt::kBatchCount ? Set(Of(d).count, value, bytes)
                                              : Set(Of(d).offset, value, bytes);
  };
  library.preference.create = Make;
  library.preference.set = [](void* d, int attribute, const void* value, size_t bytes) {
    if (attribute == CublasLt::kWorkspaceMax) return bytes == 8 ? 0 : 7;
    return attribute == CublasLt::kReductions ? Set(Of(d).reductions, value, bytes)
                                              : Set(Of(d).alignment, value, bytes);
  };
  library.operation.destroy = library.matrix.destroy = library.preference.destroy = Destroy;
  library.version = []() -> size_t { return kVersion; };
  library.heuristic = [](void*, void* operation, void*, void*, void*, void*, void* preference, int wanted,
                         CublasLt::Heuristic* found, int* count) {
    ++fake.asked;
    fake.last_compute = Of(operation).kind;
    fake.last_reductions = Of(preference).reductions;
    *count = fake.knows ? std::min(wanted, kOffered) : 0;
    for (int i = 0; i < *count; ++i) {
      found[i] = {};
      found[i].algorithm.data[0] = fake.last_reductions == CublasLt::kReduceNever ? 1 : fake.splits;
      // Those with a bias are others, but for the first.
      if (i > 0) found[i].algorithm.data[1] = 10 * Of(operation).epilogue + static_cast<uint64_t>(i);
      found[i].workspace = fake.workspace;
    }
    return 0;
  };
  library.check = [](void*, void* operation, void*, void*, void*, void*, const CublasLt::Algorithm*,
                     CublasLt::Heuristic* result) {
    result->workspace = fake.workspace;
    return (Of(operation).epilogue == CublasLt::kPlain ? fake.takes_any : fake.takes_bias) ? 0 : 15;
  };
  library.configuration = [](const CublasLt::Algorithm* algorithm, int attribute, void* value, size_t bytes,
                             size_t*) {
    const auto splits = static_cast<int32_t>(algorithm->data[0]);
    if (attribute != CublasLt::kSplits || bytes != sizeof splits) return 7;
    std::memcpy(value, &splits, bytes);
    return 0;
  };
  library.matmul = Multiply;
  return library;
}

}  // namespace kiln::runtime
