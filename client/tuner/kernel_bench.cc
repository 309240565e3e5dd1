#include "client/tuner/kernel_bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "client/runtime/cuda_kernel.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

// Of two right results, beside their size: sums in another order, and what rounding makes of them.
double Tolerance(v1::DType dtype) {
  switch (dtype) {
    case v1::F64: return 1e-9;
    case v1::F32: return 1e-4;
    case v1::F16: return 1.0 / 256;
    case v1::BF16: return 1.0 / 64;
    default: return 0;
  }
}

}  // namespace

KernelBench::KernelBench(const v1::KernelTunable& tunable, Gpu& gpu) : Bench(gpu), tunable_(tunable) {
  call_.device = gpu.ordinal();
  call_.stream = gpu.stream();
}

absl::StatusOr<std::unique_ptr<Bench>> KernelBench::Create(const v1::KernelTunable& tunable,
                                                           const Images& images, Gpu& gpu) {
  if (images.empty() || images.size() != tunable.schedules_size())
    return absl::InvalidArgumentError("not an image a schedule");
  if (tunable.units() < 1 || tunable.operands().empty() ||
      static_cast<size_t>(tunable.operands_size()) > kBenchOperandsMax) {
    return absl::InvalidArgumentError("a kernel of no sensible size");
  }
  std::unique_ptr<KernelBench> bench(new KernelBench(tunable, gpu));
  uint64_t seed = 0;
  for (const v1::KernelOperand& operand : tunable.operands()) {
    if (operand.elements() < 1 || operand.elements() > kBenchElementsMax)
      return absl::InvalidArgumentError("an operand of no sensible size");
    KILN_ASSIGN_OR_RETURN(
        Operand made, Operand::Create(gpu, operand.dtype(), static_cast<size_t>(operand.elements()), ++seed));
    bench->operands_.push_back(std::move(made));
  }
  for (const std::string& image : images) {
    KILN_ASSIGN_OR_RETURN(const GpuImage header, ParseGpuImage(image));
    if (header.buffers != bench->operands_.size() || header.symbols != 0)
      return absl::InvalidArgumentError("an image of another kernel");
    KILN_ASSIGN_OR_RETURN(bench->kernels_.emplace_back(), runtime::NewCudaKernel(image));
  }
  return std::unique_ptr<Bench>(std::move(bench));
}

absl::Status KernelBench::Launch(size_t schedule) {
  std::vector<void*> buffers;
  for (const Operand& operand : operands_) buffers.push_back(operand.data());
  KilnArgs args = {};
  args.struct_size = sizeof args;
  args.buffer_count = static_cast<uint32_t>(buffers.size());
  args.buffers = buffers.data();
  return kernels_[schedule]->Run(args, 0, tunable_.units(), 0, call_);
}

absl::StatusOr<std::vector<std::string>> KernelBench::ResultsOf(size_t schedule) {
  for (int k = 0; k < tunable_.operands_size(); ++k) {
    const v1::BufferAccess access = tunable_.operands(k).access();
    if (access == v1::WRITE) KILN_RETURN_IF_ERROR(operands_[k].Poison());
    if (access == v1::READ_WRITE) KILN_RETURN_IF_ERROR(operands_[k].Fill());
  }
  KILN_RETURN_IF_ERROR(Launch(schedule));
  std::vector<std::string> results;
  for (int k = 0; k < tunable_.operands_size(); ++k) {
    results.emplace_back();
    if (tunable_.operands(k).access() == v1::READ) continue;
    KILN_ASSIGN_OR_RETURN(results.back(), operands_[k].Read());
  }
  return results;
}

absl::StatusOr<std::string> KernelBench::Difference() {
  KILN_ASSIGN_OR_RETURN(const std::vector<std::string> results, ResultsOf(chosen_));
  for (int k = 0; k < tunable_.operands_size(); ++k) {
    const v1::DType dtype = tunable_.operands(k).dtype();
    const std::string difference = FirstDifference(results[k], reference_[k], dtype, Tolerance(dtype));
    if (!difference.empty()) return absl::StrCat("buffer ", k, ": ", difference);
  }
  return "";
}

absl::Status KernelBench::CheckIntact() const {
  for (const Operand& operand : operands_) KILN_RETURN_IF_ERROR(operand.buffer().CheckIntact());
  return absl::OkStatus();
}

absl::StatusOr<v1::Candidates> KernelBench::List() {
  KILN_ASSIGN_OR_RETURN(reference_, ResultsOf(0));
  KILN_RETURN_IF_ERROR(CheckIntact());
  v1::Candidates list;
  for (const v1::KernelSchedule& schedule : tunable_.schedules()) {
    *list.add_candidates()->mutable_schedule() = schedule;
  }
  return list;
}

absl::Status KernelBench::Choose(const v1::Candidate& candidate) {
  if (reference_.empty()) return absl::FailedPreconditionError("a measurement before its list");
  const std::string wanted = SerializeDeterministic(candidate.schedule());
  const auto found = std::find_if(
      tunable_.schedules().begin(), tunable_.schedules().end(),
      [&](const v1::KernelSchedule& schedule) { return SerializeDeterministic(schedule) == wanted; });
  if (found == tunable_.schedules().end()) return absl::InvalidArgumentError("a schedule of no image");
  chosen_ = static_cast<size_t>(found - tunable_.schedules().begin());
  return absl::OkStatus();
}

}  // namespace kiln::tuner
