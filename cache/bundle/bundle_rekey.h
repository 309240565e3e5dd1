// A program of one namespace under another's name: its keys are recomputed from its RequestKey, loop IR and
// measurements, and this daemon signs what comes of it. The bytes are those that a compile in that namespace
// gives.
//
// Threads: one thread's. Errors: DATA_LOSS where the program lacks something; those of reading objects.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "cache/bundle/bundle_compiler.h"
#include "cache/signatures.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

class BundleRekey {
 public:
  // An object's packed value, of those that have been put.
  using ReadObject = std::function<absl::StatusOr<EntryValue>(const EntryId&)>;
  // `signatures` outlives it.
  BundleRekey(std::string into, BundleCompiler compiler, const Signatures* signatures, ReadObject read)
      : into_(std::move(into)),
        compiler_(std::move(compiler)),
        signatures_(signatures),
        read_(std::move(read)) {}

  // Entries of one program, verified, its manifest last. Records that this manifest does not name are left
  // out: what they are of can't be told.
  absl::StatusOr<std::vector<Entry>> Rekey(const std::vector<Entry>& program) const;

 private:
  // From the keys that entries have to those that they get.
  struct Names {
    absl::flat_hash_map<std::string, std::string> kernels, tunings;
  };
  // Renames the manifest itself.
  absl::StatusOr<Names> Rename(const std::vector<Entry>& program, v1::Manifest* manifest) const;
  absl::Status AddKernel(const Entry& entry, const Names& names, std::vector<Entry>* rekeyed) const;
  absl::Status AddTuning(const Entry& entry, const Names& names, std::vector<Entry>* rekeyed) const;
  absl::Status AddRecord(const Entry& entry, const v1::Manifest& manifest, std::vector<Entry>* rekeyed) const;
  absl::StatusOr<std::string> KernelKeyOf(const v1::ManifestKernel& kernel, const v1::Target& target,
                                          const std::vector<Entry>& program) const;

  const std::string into_;
  const BundleCompiler compiler_;
  const Signatures* const signatures_;
  const ReadObject read_;
};

}  // namespace kiln
