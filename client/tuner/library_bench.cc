#include "client/tuner/library_bench.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {

LibraryBench::LibraryBench(Gpu& gpu, const char* library) : Bench(gpu), library_(library) {
  call_.device = gpu.ordinal();
  call_.stream = gpu.stream();
  call_.recorded = true;  // launches cost nothing, and are not what is measured
}

absl::StatusOr<Operand*> LibraryBench::NewOperand(v1::DType dtype, size_t elements) {
  KILN_ASSIGN_OR_RETURN(Operand made, Operand::Create(gpu_, dtype, elements, operands_.size() + 1));
  return &operands_.emplace_back(std::move(made));
}

absl::Status LibraryBench::NewWorkspace(size_t bytes) {
  KILN_ASSIGN_OR_RETURN(GpuBuffer workspace, gpu_.Allocate(bytes));
  workspace_.emplace(std::move(workspace));
  return absl::OkStatus();
}

void* LibraryBench::Workspace(size_t bytes) const {
  return bytes <= workspace_->size() ? workspace_->data() : nullptr;
}

absl::Status LibraryBench::CheckIntact() const {
  for (const Operand& operand : operands_) KILN_RETURN_IF_ERROR(operand.buffer().CheckIntact());
  return workspace_->CheckIntact();
}

absl::StatusOr<std::string> LibraryBench::ResultOf(bool candidate) {
  KILN_RETURN_IF_ERROR(result_.operand->Poison());
  KILN_RETURN_IF_ERROR(Run(candidate));
  return result_.operand->Read();
}

double LibraryBench::Tolerance(double magnitude) const {
  return ToleranceOfSum(result_.dtype, result_.tf32, magnitude);
}

absl::Status LibraryBench::CheckDefault() const {
  for (int64_t sample = 0; sample < result_.samples; ++sample) {
    Dims at;
    size_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      at[d] = static_cast<int64_t>(Mix(4 * static_cast<uint64_t>(sample) + d) %
                                   static_cast<uint64_t>(result_.sizes[d]));
      index += static_cast<size_t>(at[d] * result_.strides[d]);
    }
    const size_t place = result_.operand->PlaceOf(index);
    if (place == std::string::npos) continue;
    double magnitude = 0;
    const double sum = Sum(at, &magnitude), got = ValueIn(reference_, place, result_.dtype);
    if (!(std::abs(got - sum) <= Tolerance(magnitude))) {
      return absl::FailedPreconditionError(
          absl::StrCat(library_, "'s own choice gives ", got, " where the sum is ", sum));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Candidates> LibraryBench::List() {
  KILN_ASSIGN_OR_RETURN(v1::Candidates list, Find());
  KILN_ASSIGN_OR_RETURN(reference_, ResultOf(/*candidate=*/false));
  KILN_RETURN_IF_ERROR(CheckDefault());
  KILN_RETURN_IF_ERROR(CheckIntact());
  return list;
}

absl::Status LibraryBench::CheckListed() const {
  return reference_.empty() ? absl::FailedPreconditionError("a measurement before its list")
                            : absl::OkStatus();
}

absl::StatusOr<std::string> LibraryBench::Difference() {
  KILN_ASSIGN_OR_RETURN(const std::string result, ResultOf(/*candidate=*/true));
  const double tolerance = 2 * Tolerance(std::sqrt(static_cast<double>(result_.depth)) / 3);
  return FirstDifference(result, reference_, result_.dtype, tolerance);
}

}  // namespace kiln::tuner
