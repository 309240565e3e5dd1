#include "cache/budget/scrubber.h"

#include <algorithm>
#include <string>
#include <vector>

#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/thread_priority.h"

namespace kiln {
namespace {

constexpr size_t kPage = 256;
constexpr int kNiceness = 15;
constexpr absl::Duration kRestAtLeast = absl::Milliseconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Scrubber>> Scrubber::Create(VerifyingStore* store, const Catalog* catalog,
                                                           const ScrubOptions& options) {
  std::unique_ptr<Scrubber> scrubber(new Scrubber(store, catalog, options));
  KILN_ASSIGN_OR_RETURN(scrubber->thread_, StartThread([made = scrubber.get()] { made->Run(); }));
  return scrubber;
}

Scrubber::~Scrubber() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool Scrubber::Rest(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&closing_), duration);
}

void Scrubber::Run() {
  LowerThreadPriority(kNiceness);
  if (!Rest(options_.before_the_first)) return;
  do {
    Pass();
    passes_.fetch_add(1, std::memory_order_relaxed);
  } while (Rest(options_.between_passes));
}

void Scrubber::Pass() {
  const double rate = static_cast<double>(std::max<uint64_t>(1, options_.bytes_per_second));
  absl::Duration owed;
  for (size_t i = 0; i < kEntryKinds; ++i) {
    const EntryKind kind = static_cast<EntryKind>(i);
    if (kind == EntryKind::kUses) continue;
    for (std::string after;;) {
      const absl::StatusOr<std::vector<CatalogEntry>> page = catalog_->Scan(kind, "", kPage, after);
      if (!page.ok() || page->empty()) break;
      for (const CatalogEntry& entry : *page) {
        // Reading takes the damaged out. What else may be wrong is told to those who call.
        store_->Get(entry.id).status().IgnoreError();
        entries_read_.fetch_add(1, std::memory_order_relaxed);
        owed += absl::Seconds(static_cast<double>(entry.bytes + entry.id.key.size()) / rate);
        if (owed < kRestAtLeast) continue;
        if (!Rest(owed)) return;
        owed = absl::ZeroDuration();
      }
      after = page->back().id.key;
    }
  }
}

}  // namespace kiln
