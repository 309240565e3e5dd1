// Writes a bundle of programs that the store has: each with its objects, kernel records, measurements and the
// record of its request, its manifest last. What two programs share is written once. Refusals are in none.
//
// `Collect` finds what belongs to it, and keeps that from eviction until the export ends; `Next` reads an
// entry at a time. Threads: one at a time. Errors: ABORTED where something goes meanwhile: try again; the
// store's. Limits: ids of all entries in memory; their values one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/bundle/bundle_compiler.h"
#include "cache/bundle/bundle_file.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

class BundleExport {
 public:
  // `manifests` in the order in which they go into the file. `signatures` and `store` outlive it. CANCELLED
  // once `gone` says so.
  static absl::StatusOr<std::unique_ptr<BundleExport>> Collect(absl::Span<const EntryId> manifests,
                                                               const std::string& job,
                                                               BundleCompiler compiler,
                                                               const Signatures* signatures, Store* store,
                                                               const std::function<bool()>& gone);

  // What comes next in the file; empty after its end.
  absl::StatusOr<std::string> Next();
  // Of all of it, once that is written.
  const v1::ExportSummary& summary() const { return summary_; }

 private:
  BundleExport(BundleCompiler compiler, const Signatures* signatures, Store* store)
      : compiler_(std::move(compiler)), signatures_(signatures), store_(store) {}
  absl::Status AddProgram(const EntryId& manifest);
  // Where it is there, which it need not be, and is `ns`'s.
  void AddRecord(const EntryId& id, const std::string& ns);
  void Add(const EntryId& id, uint32_t rebuild_ms = 0);
  absl::Status Hold();
  v1::BundleHeader HeaderFor(const std::string& job) const;

  struct Item {
    EntryId id;
    uint32_t rebuild_ms = 0;
  };

  const BundleCompiler compiler_;
  const Signatures* const signatures_;
  Store* const store_;
  std::vector<Item> items_;
  absl::flat_hash_set<EntryId> known_;
  std::vector<std::string> namespaces_;
  Holds::Hold hold_;
  std::optional<BundleWriter> writer_;
  bool begun_ = false;
  bool ended_ = false;
  size_t next_ = 0;  // of items_
  v1::ExportSummary summary_;
};

}  // namespace kiln
