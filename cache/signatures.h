// Who vouches for entries: the key that signs what this daemon makes, and the keys whose signatures count.
//
// The value of every signed kind is a serialized v1::SignedEnvelope, from the one who made it to the client
// (a v1::SignedManifest is one, with a digest besides); nobody signs an entry of another's, so a revoked
// key's entries are known wherever they went. `Sign` makes one; the store verifies it whenever it comes from
// disk (checks/verifying_store.h), so that who reads from the store only has to `Open` it.
//
// Immutable; thread-safe. A signature takes 25 µs, a verification 80 µs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/artifact_store.h"
#include "compiler/support/signature.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

// What is code, or decides about it. An object's key is its digest; kMeta is for people to read.
constexpr bool IsSigned(EntryKind kind) {
  return kind == EntryKind::kManifest || kind == EntryKind::kKernel || kind == EntryKind::kTuning ||
         kind == EntryKind::kFailure;
}

// Of a value that has been verified: its envelope, and what is in it for `name_space`. DATA_LOSS where it is
// no envelope, NOT_FOUND where it is another namespace's.
absl::StatusOr<v1::SignedEnvelope> OpenEnvelope(absl::string_view value);
absl::StatusOr<std::string> OpenFor(const std::string& name_space, absl::string_view value);

class Signatures {
 public:
  // Loads `signing.key_file`, or makes it. Errors are SigningKey::LoadOrMake's, and INVALID_ARGUMENT, which
  // names the field, for a key that is none or the daemon's own that is revoked.
  static absl::StatusOr<Signatures> Load(const v1::SigningConfig& config);
  // With a key of this process alone, for tests.
  static Signatures OfThisProcess();

  v1::SignedEnvelope Sign(const EntryId& id, const std::string& name_space, std::string value) const;
  // What the store takes.
  Entry SignEntry(EntryId id, const std::string& name_space, std::string value) const;
  // OK, or why the value is nobody's: PERMISSION_DENIED (TrustedKeys::Verify's), or DATA_LOSS.
  absl::Status Verify(const EntryId& id, absl::string_view value) const;
  // A manifest as the store has it and clients get it.
  v1::SignedManifest SignManifest(const v1::Manifest& manifest) const;
  // Of what is no entry: a bundle (bundle/bundle_file.h).
  std::string SignSubject(const SignedSubject& subject) const { return key_.Sign(subject); }
  absl::Status VerifySubject(const SignedSubject& subject, absl::string_view key_id,
                             absl::string_view signature) const {
    return trusted_.Verify(subject, key_id, signature);
  }

  const std::string& key_id() const { return key_.id(); }
  // Its own key, then those trusted besides: whose signatures count. Of everybody, or, where there are
  // tenants, of `tenant` and the namespaces that it `reads` alone.
  std::vector<v1::TrustedKey> Listed(const std::string& tenant,
                                     const std::vector<std::string>& reads = {}) const;
  const v1::SigningConfig& config() const { return config_; }

 private:
  explicit Signatures(SigningKey key);

  SigningKey key_;
  v1::SigningConfig config_;
  std::vector<v1::TrustedKey> besides_;
  TrustedKeys trusted_;
};

}  // namespace kiln
