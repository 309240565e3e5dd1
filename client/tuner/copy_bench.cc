#include "client/tuner/copy_bench.h"

#include "compiler/support/status_macros.h"

namespace kiln::tuner {

absl::StatusOr<std::unique_ptr<Bench>> CopyBench::Create(const v1::MemoryCopy& copy, Gpu& gpu) {
  if (copy.bytes() < 1) return absl::InvalidArgumentError("a copy of nothing");
  const auto bytes = static_cast<size_t>(copy.bytes());
  KILN_ASSIGN_OR_RETURN(Operand from, Operand::Create(gpu, v1::U8, bytes, 1));
  KILN_ASSIGN_OR_RETURN(Operand to, Operand::Create(gpu, v1::U8, bytes, 2));
  return std::unique_ptr<Bench>(new CopyBench(gpu, std::move(from), std::move(to)));
}

absl::Status CopyBench::Run(bool) { return to_.CopyFrom(from_); }

absl::StatusOr<std::string> CopyBench::Difference() {
  KILN_RETURN_IF_ERROR(to_.Poison());
  KILN_RETURN_IF_ERROR(Run(/*candidate=*/true));
  KILN_ASSIGN_OR_RETURN(const std::string wanted, from_.Read());
  KILN_ASSIGN_OR_RETURN(const std::string copied, to_.Read());
  return FirstDifference(copied, wanted, v1::U8, 0);
}

absl::Status CopyBench::CheckIntact() const {
  KILN_RETURN_IF_ERROR(from_.buffer().CheckIntact());
  return to_.buffer().CheckIntact();
}

absl::StatusOr<v1::Candidates> CopyBench::List() {
  KILN_ASSIGN_OR_RETURN(const std::string difference, Difference());
  if (!difference.empty()) return absl::InternalError("the driver's copy is none");
  v1::Candidates list;
  list.add_candidates();
  return list;
}

}  // namespace kiln::tuner
