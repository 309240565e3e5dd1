// How torch wants gemms and convolutions rounded now: its global settings, read from the libtorch
// of the process at each question, as ATen reads them at each of its calls.
//
// Threads: any. A setting that can't be read (another torch, or settings of torch's old and new interface
// that contradict each other, which ATen reports as an error) has no value: leave such a call to ATen.
#pragma once

#include <cstdint>
#include <optional>

#include "client/runtime/host.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

// What ATen's at::Context offers under C++ names that state the arguments' types.
struct TorchPrecision {
  const void* (*context)() = nullptr;
  bool (*matmul_tf32)(const void*) = nullptr;
  bool (*convolution_tf32)(const void*, uint64_t optional_operation) = nullptr;
  uint8_t (*half_sums)(const void*) = nullptr;  // at::CuBLASReductionOption
  uint8_t (*bfloat_sums)(const void*) = nullptr;
  bool (*half_accumulation)(const void*) = nullptr;
  bool (*cudnn_enabled)(const void*) = nullptr;
  bool (*cudnn_benchmarked)(const void*) = nullptr;
  bool (*cudnn_deterministic)(const void*) = nullptr;
  bool (*deterministic)(const void*) = nullptr;

  static TorchPrecision Find(void* libtorch_cpu);

  // Whether factors of F32 may be rounded to TF32.
  std::optional<bool> Tf32(bool convolution) const;
  // The same as `call` found it first: torch looks through several tables for it.
  std::optional<bool> Tf32(bool convolution, CallContext& call) const;
  // Whether partial sums of `dtype` may be added in that type; true for F32 and F64, which have no such
  // choice.
  std::optional<bool> ReducedSums(v1::DType dtype) const;
  // Whether results of cuDNN's have to repeat bit by bit; no value too where torch would not take cuDNN's
  // own first choice of an engine (cuDNN off, or engines measured).
  std::optional<bool> Deterministic() const;
};

}  // namespace kiln::runtime
