// The form of a bundle (proto/kiln/v1/bundle.proto): written piece by piece, read frame by frame, so that no
// more than one entry is in memory.
//
// The reader checks all that makes the file one: magic, frames, the digest over everything before the
// trailer, the number of entries, and that nothing follows. Who signed it, and what the entries are, is
// bundle_check.h's.
//
// Threads: each is one thread's. Errors of the reader: DATA_LOSS, which names the place in the file;
// UNAVAILABLE where it can't be read. Limits: a frame has at most kBundleFrameBytesMax bytes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/artifact_store.h"
#include "cache/signatures.h"
#include "compiler/support/digest.h"
#include "kiln/v1/bundle.pb.h"

namespace kiln {

inline constexpr absl::string_view kBundleMagic = "kiln-bundle-1\n";

// A signature over a bundle, as the trailer has one for each namespace.
SignedSubject BundleSubject(absl::string_view name_space, absl::string_view digest);

class BundleWriter {
 public:
  // `signatures` outlives it, and signs for the header's namespaces.
  BundleWriter(const Signatures* signatures, v1::BundleHeader header);

  // Each returns the bytes that come next in the file: first Begin, last End.
  std::string Begin();
  std::string Add(const Entry& entry);
  std::string End();

 private:
  std::string Digested(std::string bytes);

  const Signatures* const signatures_;
  const v1::BundleHeader header_;
  Sha256Builder digest_;
  uint64_t entries_ = 0;
};

class BundleReader {
 public:
  // Whether the digest has to hold: kDangerouslyBelieve is the control of the test that flips bits.
  enum class Mode { kVerify, kDangerouslyBelieve };
  // Reads `file` from its beginning; it outlives the reader.
  static absl::StatusOr<std::unique_ptr<BundleReader>> Open(FILE* file, Mode mode);

  const v1::BundleHeader& header() const { return header_; }
  // The next entry; none after the last one. Then the whole of the file is what was written, and `trailer` is
  // set.
  absl::StatusOr<std::optional<v1::BundleEntry>> Next();
  const v1::BundleTrailer& trailer() const { return trailer_; }

 private:
  BundleReader(FILE* file, Mode mode, uint64_t bytes) : file_(file), mode_(mode), bytes_(bytes) {}
  absl::Status Damaged(absl::string_view what) const;
  absl::StatusOr<std::string> Read(size_t bytes);
  absl::StatusOr<v1::BundleFrame> ReadFrame();

  FILE* const file_;
  const Mode mode_;
  const uint64_t bytes_;  // of the file
  uint64_t at_ = 0;
  Sha256Builder digest_;
  uint64_t entries_ = 0;
  std::string frame_;  // the bytes of the last one
  v1::BundleHeader header_;
  v1::BundleTrailer trailer_;
};

}  // namespace kiln
