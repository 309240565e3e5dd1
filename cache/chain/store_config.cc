#include "cache/chain/store_config.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/budget/evicting_store.h"
#include "cache/budget/scrubber.h"
#include "cache/budget/uses_store.h"
#include "cache/cache_limits.h"
#include "cache/chain/metrics_store.h"
#include "cache/checks/completeness_store.h"
#include "cache/checks/store_verify.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/memory_store.h"
#include "cache/engine/rocksdb_store.h"
#include "cache/engine/unavailable_store.h"
#include "cache/tiers/coalescing_store.h"
#include "cache/tiers/tiered_store.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/private_directory.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

bool IsEnvironmentError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status);
}

// A directory that others could write is refused, and the operator is told which; one that can't be made is
// the environment's fault, which clients are told without its path.
absl::Status PrepareDirectory(const std::string& path) {
  absl::Status made = MakePrivateDirectory(path);
  if (!IsEnvironmentError(made)) return StatusWrap(made, "store");
  return absl::Status(made.code(), "the store's directory can't be made");
}

RocksdbOptions EngineOptions(const v1::StoreConfig& config, uint64_t budget,
                             const StoreEnvironment& environment) {
  RocksdbOptions options;
  options.directory = config.directory();
  // The log, at four buffers, has to stay a small part of the budget; so has a blob file.
  options.write_buffer_bytes = std::clamp<uint64_t>(budget / 64, 64u << 10, 16u << 20);
  options.blob_file_bytes = std::clamp<uint64_t>(budget / 64, 256u << 10, 64u << 20);
  options.dangerously_no_sync = config.dangerously_no_sync();
  options.dangerously_no_checksums = config.dangerously_no_verify();
  options.env = environment.env;
  options.now_unix_seconds = environment.now_unix_seconds;
  return options;
}

class StoreChain : public Store {
 public:
  // Opens the engine, or what stands in for it.
  absl::Status Build(const v1::StoreConfig& config, const StoreEnvironment& environment,
                     WhereInUse where_in_use);

  ArtifactStore& artifacts() override { return *top_; }
  ArtifactStore& inspection() override { return *completeness_; }
  Catalog& catalog() override { return *catalog_; }
  void SetCompiler(absl::string_view fingerprint) override {
    catalog_->SetCompiler(CompilerNumber(fingerprint));
    evicting_->SetCompiler(CompilerNumber(fingerprint));
  }
  Holds::Hold Keep(absl::Span<const EntryId> ids) override { return evicting_->holds().Keep(ids); }
  void OnEvicted(EvictionListener listener) override { evicting_->AddListener(std::move(listener)); }
  absl::Status EvictTo(uint64_t live_bytes) override { return evicting_->EvictTo(live_bytes); }
  StoreStatistics statistics() const override;
  absl::StatusOr<VerifyResult> Verify(bool repair, const std::function<bool()>& gone) override {
    return VerifyEntries(*catalog_, verifying_, repair, gone);
  }

 private:
  absl::StatusOr<std::unique_ptr<ArtifactStore>> OpenEngine(RocksdbOptions options, bool real_directory,
                                                            WhereInUse where_in_use);

  std::unique_ptr<ArtifactStore> top_;
  // Inside top_:
  Catalog* catalog_ = nullptr;
  RocksdbStore* engine_ = nullptr;  // null where an UnavailableStore stands in
  VerifyingStore* verifying_ = nullptr;
  EvictingStore* evicting_ = nullptr;
  CompletenessStore* completeness_ = nullptr;
  MetricsStore* metrics_ = nullptr;
  absl::Status not_writable_;

  std::unique_ptr<Scrubber> scrubber_;  // none where nothing is verified; ends before the chain
};

absl::StatusOr<std::unique_ptr<ArtifactStore>> StoreChain::OpenEngine(RocksdbOptions options,
                                                                      bool real_directory,
                                                                      WhereInUse where_in_use) {
  absl::Status prepared = real_directory ? PrepareDirectory(options.directory) : absl::OkStatus();
  if (prepared.ok()) {
    auto engine = RocksdbStore::Open(options);
    if (engine.ok()) {
      engine_ = engine->get();
      catalog_ = engine_;
      return std::unique_ptr<ArtifactStore>(*std::move(engine));
    }
    prepared = engine.status();
  }
  const bool in_use = absl::IsAborted(prepared) && where_in_use == WhereInUse::kMemoryOnly;
  if (!IsEnvironmentError(prepared) && !in_use) return prepared;
  not_writable_ = in_use ? absl::UnavailableError(prepared.message()) : prepared;
  options.read_only = true;
  // Files of a store in use would go from under a reader.
  if (!in_use) {
    auto engine = RocksdbStore::Open(options);
    if (engine.ok()) {
      engine_ = engine->get();
      catalog_ = engine_;
      return std::unique_ptr<ArtifactStore>(*std::move(engine));
    }
  }
  auto unavailable = std::make_unique<UnavailableStore>(not_writable_);
  catalog_ = unavailable.get();
  return std::unique_ptr<ArtifactStore>(std::move(unavailable));
}

absl::Status StoreChain::Build(const v1::StoreConfig& config, const StoreEnvironment& environment,
                               WhereInUse where_in_use) {
  if (config.directory().empty()) return absl::InvalidArgumentError("store.directory is empty");
  uint64_t budget = config.budget_bytes() != 0 ? config.budget_bytes() : kStoreBudgetBytesDefault;
  uint64_t memory = config.memory_bytes() != 0 ? config.memory_bytes() : kStoreMemoryBytesDefault;
  if (budget < kStoreBudgetBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("store.budget_bytes is ", budget, ", at least ", kStoreBudgetBytesMin));
  }
  StoreEnvironment env = environment;
  if (!env.now_unix_seconds) {
    // The wall's as it was when the store was opened: were it set meanwhile, what is in use would be old.
    env.now_unix_seconds = [opened = absl::ToUnixSeconds(absl::Now()), then = MonotonicNow()] {
      return opened + std::chrono::duration_cast<std::chrono::seconds>(MonotonicNow() - then).count();
    };
  }
  KILN_ASSIGN_OR_RETURN(
      std::unique_ptr<ArtifactStore> engine,
      OpenEngine(EngineOptions(config, budget, env), environment.env == nullptr, where_in_use));
  auto verifying = std::make_unique<VerifyingStore>(std::move(engine),
                                                    config.dangerously_no_verify()
                                                        ? VerifyingStore::Mode::kDangerouslyBelieve
                                                        : VerifyingStore::Mode::kVerify,
                                                    env.signatures);
  verifying_ = verifying.get();
  auto memory_store = std::make_unique<MemoryStore>(memory);
  EvictingOptions evicting_options;
  evicting_options.budget_bytes = budget;
  evicting_options.entries_max = config.entries_max() != 0 ? config.entries_max() : kStoreEntriesMaxDefault;
  evicting_options.unused_seconds_max = config.unused_seconds_max();
  evicting_options.now_unix_seconds = env.now_unix_seconds;
  evicting_options.read_manifest = [verifying = verifying_](const EntryId& id) {
    return verifying->GetWhole(id);
  };
  KILN_ASSIGN_OR_RETURN(auto evicting,
                        EvictingStore::Create(std::move(verifying), catalog_, std::move(evicting_options)));
  evicting_ = evicting.get();
  auto tiered = std::make_unique<TieredStore>(std::move(memory_store), std::move(evicting));
  evicting_->AddListener([tiered = tiered.get()](absl::Span<const EntryId> ids) { tiered->Forget(ids); });
  auto coalescing = std::make_unique<CoalescingStore>(std::move(tiered));
  auto completeness = std::make_unique<CompletenessStore>(std::move(coalescing));
  completeness_ = completeness.get();
  auto uses = std::make_unique<UsesStore>(std::move(completeness), catalog_);
  auto metrics = std::make_unique<MetricsStore>(std::move(uses));
  metrics_ = metrics.get();
  top_ = std::move(metrics);
  if (config.dangerously_no_verify()) return absl::OkStatus();
  ScrubOptions scrub;
  scrub.bytes_per_second =
      config.scrub_bytes_per_second() != 0 ? config.scrub_bytes_per_second() : kStoreScrubBytesDefault;
  KILN_ASSIGN_OR_RETURN(scrubber_, Scrubber::Create(verifying_, catalog_, scrub));
  return absl::OkStatus();
}

StoreStatistics StoreChain::statistics() const {
  StoreStatistics statistics;
  statistics.put_failures = metrics_->batches_failed();
  statistics.quarantined = verifying_->quarantined();
  statistics.refused_signatures = verifying_->refused_signatures();
  statistics.evicted = evicting_->evicted();
  statistics.unread = evicting_->unread();
  statistics.scrubbed = scrubber_ != nullptr ? scrubber_->entries_read() : 0;
  CatalogTotals totals = catalog_->Totals();
  statistics.entries = totals.entries[static_cast<size_t>(EntryKind::kManifest)];
  statistics.objects = totals.entries[static_cast<size_t>(EntryKind::kObject)];
  statistics.bytes_on_disk = totals.bytes_on_disk;
  absl::Status state = !not_writable_.ok() || engine_ == nullptr ? not_writable_ : engine_->write_state();
  statistics.writable = state.ok();
  statistics.message = std::string(state.message());
  return statistics;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> NewStore(const v1::StoreConfig& config,
                                                const StoreEnvironment& environment,
                                                WhereInUse where_in_use) {
  auto chain = std::make_unique<StoreChain>();
  KILN_RETURN_IF_ERROR(chain->Build(config, environment, where_in_use));
  return std::unique_ptr<Store>(std::move(chain));
}

}  // namespace kiln
