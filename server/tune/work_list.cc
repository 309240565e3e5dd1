#include "server/tune/work_list.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "server/pool/measuring_pool.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

constexpr absl::Duration kFactsLife = absl::Seconds(10);
constexpr absl::Duration kNoFactsLife = absl::Seconds(1);
constexpr size_t kBuildBytes = 6;  // of a digest

absl::Status Bad(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("an item of the work list: ", what));
}

}  // namespace

std::string WorkList::KindOf(const v1::Target& target) {
  const uint32_t architecture = ArchitectureOf(target);
  return architecture == 0 ? "" : absl::StrCat("sm_", architecture);
}

std::string WorkList::KindOf(const v1::GpuFacts& facts) { return absl::StrCat("sm_", facts.architecture()); }

TierWork::List WorkList::ListOf(const std::string& ns, absl::string_view kind) const {
  const std::string build =
      Sha256Builder().AddField("kiln-work-list-1").AddField(compiler_).AddField(policy_).Finish();
  return {ns, absl::StrCat(kind, "-", ToHex(build.substr(0, kBuildBytes)))};
}

std::string WorkList::SubjectOf(const std::string& ns, const v1::Tunable& tunable,
                                const v1::Target& target) const {
  v1::GpuFacts kind;
  kind.set_architecture(ArchitectureOf(target));
  return TuningKey(ns, tunable, kind, policy_);
}

// ---- Who asks --------------------------------------------------------------------------------

absl::StatusOr<v1::GpuFacts> WorkList::Facts(const std::string& ns, const v1::Target& target) {
  const TierWork::List list = ListOf(ns, KindOf(target));
  {
    absl::MutexLock lock(&mutex_);
    const auto found = known_.find(absl::StrCat(list.ns, ":", list.kind));
    if (found != known_.end() && MonotonicNow() < found->second.until) return found->second.facts;
  }
  return FactsNow(ns, target);
}

absl::StatusOr<v1::GpuFacts> WorkList::FactsNow(const std::string& ns, const v1::Target& target) {
  const TierWork::List list = ListOf(ns, KindOf(target));
  Known known;
  const absl::StatusOr<std::string> told = work_->Device(list);
  v1::GpuFacts facts;
  if (!told.ok()) {
    known.facts = told.status();
  } else if (!ParseProto(*told, "device", &facts).ok() || facts.architecture() != ArchitectureOf(target)) {
    known.facts = absl::DataLossError("what the shared tier says of such a device does not hold");
  } else {
    known.facts = facts;
  }
  known.until = MonotonicAfter(known.facts.ok() ? kFactsLife : kNoFactsLife);
  absl::MutexLock lock(&mutex_);
  if (known_.size() >= kKnownDevicesMax) known_.clear();
  // A tier that is away says nothing new.
  Known& kept = known_[absl::StrCat(list.ns, ":", list.kind)];
  const bool away = !known.facts.ok() && !absl::IsNotFound(known.facts.status());
  if (away && kept.facts.ok()) known.facts = kept.facts;
  kept = known;
  return known.facts;
}

absl::StatusOr<TierWork::Asked> WorkList::Ask(const std::string& ns, const v1::TuningItem& item) const {
  if (const absl::Status kernel = KernelOf(item).status(); !kernel.ok())
    return absl::InvalidArgumentError(kernel.message());
  return work_->Ask(ListOf(ns, KindOf(item.target())), SubjectOf(ns, item.tunable(), item.target()),
                    SerializeDeterministic(item));
}

// ---- Who has the device ----------------------------------------------------------------------

absl::Status WorkList::Tell(const std::string& ns, const v1::GpuFacts& facts) const {
  const std::string told = SerializeDeterministic(facts);
  KILN_ASSIGN_OR_RETURN(const std::string stands, work_->TellDevice(ListOf(ns, KindOf(facts)), told));
  if (stands == told) return absl::OkStatus();
  v1::GpuFacts other;
  KILN_RETURN_IF_ERROR(ParseProto(stands, "device", &other));
  return absl::FailedPreconditionError(absl::StrCat(
      "the tier's daemons measure ", KindOf(facts), " on another device: ", other.name(), ", driver ",
      other.driver_version(), ", cuBLASLt ", other.cublas_lt_version(), ", cuDNN ", other.cudnn_version()));
}

absl::StatusOr<std::optional<WorkList::Claimed>> WorkList::Claim(const TierWork::List& list) const {
  KILN_ASSIGN_OR_RETURN(std::optional<TierWork::Claimed> claim, work_->Claim(list));
  if (!claim.has_value()) return std::nullopt;
  Claimed claimed;
  claimed.work = Checked(list, *claim);
  claimed.claim = *std::move(claim);
  return claimed;
}

absl::StatusOr<WorkList::Work> WorkList::Checked(const TierWork::List& list,
                                                 const TierWork::Claimed& claim) const {
  KILN_RETURN_IF_ERROR(claim.item.status());
  v1::TuningItem item;
  if (!ParseProto(*claim.item, "item", &item).ok()) return Bad("it does not parse");
  const v1::Tunable& tunable = item.tunable();
  if (ListOf(list.ns, KindOf(item.target())).kind != list.kind) return Bad("it is for another device");
  if (SubjectOf(list.ns, tunable, item.target()) != claim.subject) return Bad("it is not what its name says");
  Work work;
  KILN_ASSIGN_OR_RETURN(work.kernel, KernelOf(item));
  work.tunable = std::move(*item.mutable_tunable());
  work.target = std::move(*item.mutable_target());
  return work;
}

// Unpacked; empty for what is no kernel.
absl::StatusOr<std::string> WorkList::KernelOf(const v1::TuningItem& item) const {
  if (item.tunable().kind_case() == v1::Tunable::KIND_NOT_SET) return Bad("it is of no known kind");
  const bool of_compiler = item.tunable().has_kernel() || item.tunable().has_gemm();
  if (of_compiler && item.tunable().compiler() != compiler_) return Bad("its kernel is another compiler's");
  if (!item.tunable().has_kernel()) {
    if (!item.kernel().empty()) return Bad("a kernel of what is none");
    return "";
  }
  const v1::KernelTunable& kernel = item.tunable().kernel();
  if (kernel.schedules_size() == 0 || kernel.schedules_size() > kAskedSchedulesMax)
    return Bad("its kernel has no schedules, or too many");
  const absl::StatusOr<size_t> size = ZstdRawSize(item.kernel());
  if (!size.ok() || *size > kAskedKernelBytesMax) return Bad("its kernel is none, or too large");
  absl::StatusOr<std::string> raw = ZstdDecompress(item.kernel(), *size);
  if (!raw.ok() || Sha256(*raw) != kernel.digest()) return Bad("its kernel is not its digest's");
  return raw;
}

}  // namespace kiln
