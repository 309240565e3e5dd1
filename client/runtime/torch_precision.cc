#include "client/runtime/torch_precision.h"

#include "client/runtime/library_functions.h"

namespace kiln::runtime {
namespace {

// std::optional<at::Float32Op>(at::Float32Op::CONV) as it is passed: the enumeration's int, then whether
// there is one.
constexpr uint64_t kConvolution = 1 | uint64_t{1} << 32;

constexpr uint8_t kReducedSums = 0,
                  kExactSums = 1;  // at::CuBLASReductionOption; 2 forbids to split sums at all

// `ask()`, or no value where torch throws.
template <typename Ask>
auto Answer(Ask ask) -> std::optional<decltype(ask())> {
  try {
    return ask();
  } catch (...) {  // torch's: its old and new settings contradict each other
    return std::nullopt;
  }
}

}  // namespace

TorchPrecision TorchPrecision::Find(void* libtorch_cpu) {
  TorchPrecision found;
  const LibraryFunctions functions(libtorch_cpu);
  functions.Want(found.context, "_ZN2at13globalContextEv");
  functions.Want(found.matmul_tf32, "_ZNK2at7Context15allowTF32CuBLASEv");
  functions.Want(found.convolution_tf32, "_ZNK2at7Context14allowTF32CuDNNESt8optionalINS_9Float32OpEE");
  functions.Want(found.half_sums, "_ZNK2at7Context24allowFP16ReductionCuBLASEv");
  functions.Want(found.bfloat_sums, "_ZNK2at7Context24allowBF16ReductionCuBLASEv");
  functions.Want(found.half_accumulation, "_ZNK2at7Context27allowFP16AccumulationCuBLASEv");
  functions.Want(found.cudnn_enabled, "_ZNK2at7Context16userEnabledCuDNNEv");
  functions.Want(found.cudnn_benchmarked, "_ZNK2at7Context14benchmarkCuDNNEv");
  functions.Want(found.cudnn_deterministic, "_ZNK2at7Context18deterministicCuDNNEv");
  functions.Want(found.deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv");
  return found;
}

std::optional<bool> TorchPrecision::Tf32(bool convolution) const {
  if (context == nullptr) return std::nullopt;
  if (convolution) {
    if (convolution_tf32 == nullptr) return std::nullopt;
    return Answer([&] { return convolution_tf32(context(), kConvolution); });
  }
  if (matmul_tf32 == nullptr) return std::nullopt;
  return Answer([&] { return matmul_tf32(context()); });
}

std::optional<bool> TorchPrecision::Tf32(bool convolution, CallContext& call) const {
  std::optional<std::optional<bool>>& known = call.tf32[convolution ? 1 : 0];
  if (!known.has_value()) known = Tf32(convolution);
  return *known;
}

std::optional<bool> TorchPrecision::ReducedSums(v1::DType dtype) const {
  if (dtype == v1::F32 || dtype == v1::F64) return true;
  if (context == nullptr || (dtype != v1::F16 && dtype != v1::BF16)) return std::nullopt;
  if (dtype == v1::F16) {
    if (half_accumulation == nullptr) return std::nullopt;
    if (Answer([&] { return half_accumulation(context()); }).value_or(true)) return std::nullopt;
  }
  const auto sums = dtype == v1::F16 ? half_sums : bfloat_sums;
  if (sums == nullptr) return std::nullopt;
  const std::optional<uint8_t> option = Answer([&] { return sums(context()); });
  if (option == kReducedSums) return true;
  if (option == kExactSums) return false;
  return std::nullopt;
}

std::optional<bool> TorchPrecision::Deterministic() const {
  if (context == nullptr || cudnn_enabled == nullptr || cudnn_benchmarked == nullptr ||
      cudnn_deterministic == nullptr || deterministic == nullptr) {
    return std::nullopt;
  }
  const void* now = context();
  if (!cudnn_enabled(now) || cudnn_benchmarked(now)) return std::nullopt;
  return cudnn_deterministic(now) || deterministic(now);
}

}  // namespace kiln::runtime
