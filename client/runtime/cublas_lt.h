// What the runtime uses of cuBLASLt, found at run time in the library that torch has loaded already, or in a
// file.
//
// Signatures and numbers as in cublasLt.h of CUDA 12 and 13, which keep them. Status 0 is success.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace kiln::runtime {

struct CublasLt {
  using Status = int;
  using Handle = void*;
  using Descriptor = void*;  // of an operation, a matrix or a preference

  struct Algorithm {
    uint64_t data[8];
  };
  struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
  };

  enum DataType : int { kF32 = 0, kF64 = 1, kF16 = 2, kBF16 = 14 };
  enum ComputeType : int { kCompute32F = 68, kCompute64F = 70, kComputeTf32 = 77 };
  enum OperationAttribute : int { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8 };
  enum MatrixAttribute : int { kBatchCount = 5, kBatchOffset = 6 };
  enum PreferenceAttribute : int {
    kWorkspaceMax = 1,
    kReductions = 3,
    kAlignA = 5,
    kAlignB = 6,
    kAlignC = 7,
    kAlignD = 8
  };
  enum AlgorithmAttribute : int { kSplits = 2 };
  // What is done to sums, as bits; kPlain where there is none.
  enum EpilogueKind : uint32_t { kPlain = 1, kRelu = 2, kBias = 4, kGelu = 32 };
  enum ReductionMask : uint32_t { kReduceNever = 0, kReduceInCompute = 2, kReduceAnyhow = 7 };

  // What makes, describes and destroys descriptors of one kind; `Facts` are what one is made of.
  template <typename... Facts>
  struct Descriptors {
    Status (*create)(Descriptor*, Facts...);
    Status (*destroy)(Descriptor);
    Status (*set)(Descriptor, int attribute, const void* value, size_t bytes);
  };

  size_t (*version)();
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Descriptors<int, int> operation;                       // types of the computation and of the scale
  Descriptors<int, uint64_t, uint64_t, int64_t> matrix;  // type, rows, columns, leading dimension
  Descriptors<> preference;
  Status (*heuristic)(Handle, Descriptor operation, Descriptor a, Descriptor b, Descriptor c, Descriptor d,
                      Descriptor preference, int wanted, Heuristic* found, int* count);
  Status (*check)(Handle, Descriptor operation, Descriptor a, Descriptor b, Descriptor c, Descriptor d,
                  const Algorithm*, Heuristic* result);
  Status (*configuration)(const Algorithm*, int attribute, void* value, size_t bytes, size_t* written);
  Status (*matmul)(Handle, Descriptor operation, const void* alpha, const void* a, Descriptor a_layout,
                   const void* b, Descriptor b_layout, const void* beta, const void* c, Descriptor c_layout,
                   void* d, Descriptor d_layout, const Algorithm*, void* workspace, size_t workspace_bytes,
                   void* stream);
};

// UNIMPLEMENTED when the process has not loaded it, or a function is missing.
absl::StatusOr<CublasLt> FindCublasLt();
// Loads it for the process's life: from `path`, or by its name where that is empty.
absl::StatusOr<CublasLt> LoadCublasLt(const std::string& path);

}  // namespace kiln::runtime
