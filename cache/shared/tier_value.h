// Names and values of the shared tier. Every name starts "kiln:1:NAMESPACE:", so that a user of the engine
// can be held to a tenant's, and all of one CompileKey have one hash tag, so that a cluster keeps them
// together:
//
//   kiln:1:NS:{COMPILE KEY}:m         hash, variant id → manifest       :f  refusal     :r  request record
//   kiln:1:NS:{TUNING KEY}:t          tuning record                 :b  those barred, see tier_tuning.h
//   kiln:1:NS:{COMPILE KEY}:g:GANG    what a gang is served         :x  how many crashed over it
//   kiln:1:NS:{COMPILE KEY}:c         claim
//   kiln:1:NS:{records}:l             sorted set of CompileKeys that have a request record, tier_records.h
//   kiln:1:NS:{w:KIND}:…              what is to be measured on a kind of device, see tier_work.h
//   kiln:1:NS:{"daemons"}:d           set of ids                    :d:ID  a daemon's record, tier_members.h
//   kiln:1:NS:{DIGEST}:o:SIZE:INDEX   an object's packed bytes, in chunks of kTierChunkBytes
//
// Keys and digests are hexadecimal. A value is a SignedEnvelope over (kind, namespace, key, bytes): a value
// under another name, in another namespace or for another kind is nobody's. Of the kinds that the store holds
// signed it is the maker's own, whoever wrote it here; an object's chunks, request records and gangs'
// verdicts are sealed by who writes them.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/artifact_store.h"
#include "cache/signatures.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

inline constexpr size_t kTierChunkBytes = 1u << 20;

// What follows the hash tag. Who writes another kind lists it here, and says in tests/fault/tier_liar.h what
// a lie about it is.
inline constexpr absl::string_view kTierKinds[] = {"m", "f", "r", "t", "b", "g", "x",
                                                   "c", "d", "l", "o", "w", "s"};

// One of them: what is not listed does not compile.
class TierKind {
 public:
  consteval TierKind(const char* kind) : kind_(kind) {  // NOLINT(google-explicit-constructor)
    bool listed = false;
    for (const absl::string_view one : kTierKinds) listed = listed || one == kind_;
    if (!listed) IsNotListed();
  }
  constexpr absl::string_view text() const { return kind_; }

 private:
  static void IsNotListed();  // nowhere: nothing to be called while compiling

  absl::string_view kind_;
};

// `rest`: what tells several of a key apart, "ID" of "g:ID" for example.
std::string TierName(absl::string_view ns, absl::string_view key, TierKind kind, absl::string_view rest = "");
// Of what belongs to no key: `tag` stands in place of one.
std::string TierNameOfTag(absl::string_view ns, absl::string_view tag, TierKind kind,
                          absl::string_view rest = "");

// An object's chunk, `size` being all that is packed.
std::string TierChunkName(absl::string_view ns, absl::string_view digest, uint64_t size, uint64_t index);
std::string TierChunkKey(absl::string_view digest, uint64_t size, uint64_t index);
inline uint64_t TierChunks(uint64_t size) { return (size + kTierChunkBytes - 1) / kTierChunkBytes; }

// The manifest in a value that has been verified; DATA_LOSS where it is none.
absl::StatusOr<v1::Manifest> ManifestIn(absl::string_view sealed);
// All objects that it names, each once.
std::vector<v1::ObjectRef> DistinctObjects(const v1::Manifest& manifest);

// `bytes` as the store has them.
std::string SealTierValue(const Signatures& signatures, const EntryId& id, const std::string& ns,
                          absl::string_view bytes);

// What SealTierValue was given. PERMISSION_DENIED or DATA_LOSS where the signature does not count, see
// Signatures::Verify; DATA_LOSS where it is another namespace's.
absl::StatusOr<std::string> OpenTierValue(const Signatures& signatures, const EntryId& id,
                                          const std::string& ns, absl::string_view sealed);
// For the negative control of a test.
absl::StatusOr<std::string> OpenTierValueUnchecked(const EntryId& id, absl::string_view sealed);

}  // namespace kiln
