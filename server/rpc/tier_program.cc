#include "server/rpc/tier_program.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/shared/tier_value.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"

namespace kiln {
namespace {

absl::Status NotAsked(const absl::Status& status) {
  return absl::FailedPreconditionError(
      absl::StrCat("the shared tier could not be asked: ", status.message()));
}

absl::StatusOr<TierProgram> ProgramOf(const SharedTier::Found& found, std::string ns) {
  TierProgram program;
  program.ns = std::move(ns);
  bool recorded = false;
  for (const Entry& entry : found.entries) {
    if (entry.id.kind == EntryKind::kManifest) {
      KILN_ASSIGN_OR_RETURN(program.variants.emplace_back(), ManifestIn(*entry.value));
    } else if (entry.id.kind == EntryKind::kMeta) {
      KILN_RETURN_IF_ERROR(ParseProto(*entry.value, "request record", &program.record));
      recorded = true;
    }
  }
  if (!recorded)
    return absl::FailedPreconditionError("the shared tier has the program, and not what its key was made of");
  return program;
}

}  // namespace

absl::StatusOr<TierProgram> ReadTierProgram(SharedTier& tier, const v1::ListenConfig& listen,
                                            const std::string& compile_key) {
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    const absl::StatusOr<SharedTier::Found> found =
        tier.LookUp(tenant.name(), compile_key, MonotonicAfter(kTierLookLimit));
    if (found.ok()) return ProgramOf(*found, tenant.name());
    if (!absl::IsNotFound(found.status())) return NotAsked(found.status());
  }
  return absl::NotFoundError("the shared tier has no such key");
}

absl::Status VisitTierRecords(SharedTier& tier, const v1::ListenConfig& listen,
                              absl::FunctionRef<bool(const TierRecords::Record&)> visit) {
  bool goes_on = true;
  const auto each = [&](const TierRecords::Record& record) { return goes_on = visit(record); };
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    if (!goes_on) break;
    KILN_RETURN_IF_ERROR(tier.records()->EachLatest(tenant.name(), each));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::flat_hash_map<std::string, std::string>> ReadTierLoops(SharedTier& tier,
                                                                            const std::string& ns,
                                                                            const v1::Manifest& manifest) {
  std::vector<v1::ObjectRef> refs;
  absl::flat_hash_map<std::string, uint64_t> sizes;
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    if (sizes.emplace(kernel.loop_ir().digest(), kernel.loop_ir().raw_size()).second)
      refs.push_back(kernel.loop_ir());
  }
  const absl::StatusOr<std::vector<Entry>> fetched = tier.Fetch(ns, refs);
  if (!fetched.ok()) return NotAsked(fetched.status());
  absl::flat_hash_map<std::string, std::string> loops;
  for (const Entry& entry : *fetched) {
    KILN_ASSIGN_OR_RETURN(loops[entry.id.key], ZstdDecompress(*entry.value, sizes[entry.id.key]));
  }
  return loops;
}

}  // namespace kiln
