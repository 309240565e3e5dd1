// Takes a bundle into the store: checks all of it (bundle_check.h), then puts a program at a time, as one
// that was compiled here is put. Where it ends early, what has been put is whole, counts, and is there for
// the next import.
//
// Threads: one import is one thread's. Errors: CheckBundle's, before anything is put; then the store's, and
// CANCELLED. Limits: one program's entries in memory: kBundleRecordBytesMax of records, and of their objects
// kProgramBytes, and one.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/bundle/bundle_compiler.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/bundle.pb.h"

namespace kiln {

class BundleImport {
 public:
  struct Options {
    std::string into;  // a namespace for all of it; empty: as it is
    bool pin = false;
    // Refuses namespaces of which nobody here would be served.
    std::function<absl::Status(const std::string&)> check_namespace;
    // Before a manifest of that key is put: its namespace, CompileKey, VariantId.
    std::function<void(const std::string&, const std::string&, const std::string&)> make_room;
    // After it: what memory knows of the CompileKey is old.
    std::function<void(const std::string&)> changed;
    std::function<bool()> gone;
    bool dangerously_believe = false;  // the control of the test that flips bits
  };
  // `signatures` and `store` outlive it.
  BundleImport(Options options, BundleCompiler compiler, const Signatures* signatures, Store* store)
      : options_(std::move(options)),
        compiler_(std::move(compiler)),
        signatures_(signatures),
        store_(store) {}

  absl::StatusOr<v1::ImportReply> Run(FILE* file);

 private:
  static constexpr size_t kProgramBytes = 32u << 20;

  absl::StatusOr<v1::BundleHeader> Check(FILE* file);
  absl::Status PutAll(FILE* file);
  // Takes the objects out of a program of which the manifest is still to come: they go by any name.
  absl::Status PutObjects(std::vector<Entry>* program);
  // `program` ends with its manifest.
  absl::Status PutProgram(std::vector<Entry> program);
  absl::Status PutWhatIsMissing(const std::vector<Entry>& entries);
  absl::StatusOr<bool> IsThere(const EntryId& id);
  absl::Status Pin(const EntryId& manifest);

  const Options options_;
  const BundleCompiler compiler_;
  const Signatures* const signatures_;
  Store* const store_;
  v1::ImportReply reply_;
};

}  // namespace kiln
