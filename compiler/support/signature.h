// ed25519 signatures of what kiln stores and serves.
//
// What is signed is one entry: its kind, the namespace that it is of, its whole key and its bytes, each with
// its length, so that no entry passes for another. A key's id is the hexadecimal SHA-256 of its public half,
// so whoever has a public key knows its id. Trust is from keys to namespaces, and a revoked key is trusted
// for nothing.
//
// Threads: all are immutable after they are made; copies are cheap.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

inline constexpr size_t kPublicKeyBytes = 32;
inline constexpr size_t kSignatureBytes = 64;

struct SignedSubject {
  absl::string_view kind;  // EntryKindName, or a name of its own
  absl::string_view name_space;
  absl::string_view key;
  absl::string_view bytes;
};

std::string KeyIdOf(absl::string_view public_key);

class SigningKey {
 public:
  // PEM (PKCS #8). Makes the file (0600) where there is none; of several processes that do so at once one
  // wins, and all have its key. FAILED_PRECONDITION where it is another's, a link, or others may read or
  // write it; INVALID_ARGUMENT where it holds no ed25519 key or is longer than one takes. Messages name
  // the path.
  static absl::StatusOr<SigningKey> LoadOrMake(const std::string& path);
  static SigningKey Make();  // of this process alone

  const std::string& public_key() const { return public_key_; }
  const std::string& id() const { return id_; }
  std::string Sign(const SignedSubject& subject) const;

 private:
  explicit SigningKey(std::shared_ptr<void> key);
  std::shared_ptr<void> key_;  // an EVP_PKEY
  std::string public_key_;
  std::string id_;
};

class TrustedKeys {
 public:
  // For these namespaces alone; none: for every one. INVALID_ARGUMENT where it is no public key.
  absl::Status Add(absl::string_view public_key, std::vector<std::string> namespaces = {});
  void Revoke(absl::string_view key_id) { revoked_.insert(std::string(key_id)); }

  // OK, or why the signature does not count: PERMISSION_DENIED (no such key, not for that namespace,
  // revoked), DATA_LOSS (not this key's, or of other bytes).
  absl::Status Verify(const SignedSubject& subject, absl::string_view key_id,
                      absl::string_view signature) const;
  bool empty() const { return keys_.empty(); }

 private:
  struct Key {
    std::shared_ptr<void> key;  // an EVP_PKEY
    bool every_namespace = false;
    absl::flat_hash_set<std::string> namespaces;
  };
  absl::flat_hash_map<std::string, Key> keys_;  // by id
  absl::flat_hash_set<std::string> revoked_;
};

}  // namespace kiln
