// Whose signatures a client takes: the keys that its daemon lists in Hello, and of them no others than
// ClientOptions::trusted_keys names, where it names any.
//
// A daemon that speaks protocol 1 signs nothing. On a unix socket, whose owner the file system vouches for,
// its manifests are taken by their digests, or without where it is so old that it sends none; over TCP, and
// where keys are named, they are refused.
//
// Immutable; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/support/signature.h"
#include "kiln/v1/compile.pb.h"

namespace kiln {

class DaemonKeys {
 public:
  // `address` as the channel's; `name_space`: what the client asks for where the daemon knows no tenant;
  // `only`: public keys; empty: whatever the daemon lists.
  DaemonKeys(const v1::HelloReply& hello, absl::string_view address, const std::string& name_space,
             const std::vector<std::string>& only);

  // OK; DATA_LOSS where the bytes are not what was signed or by nobody who counts; FAILED_PRECONDITION where
  // the daemon is too old to be asked there.
  absl::Status Check(const v1::SignedManifest& signed_manifest, const v1::Manifest& manifest) const;

 private:
  bool signs_ = false;
  bool on_unix_socket_ = false;
  bool narrowed_ = false;
  TrustedKeys trusted_;
};

}  // namespace kiln
