// The three PEM files of one side of mutual TLS: its certificate with the chain to its authority, the key of
// that certificate, and the authority that has to have signed the other side's.
//
// Threads: pure functions but for the file system.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kiln {

struct TlsFiles {
  std::string certificate, key, authority;  // paths; or what messages call the three
};

struct TlsPems {
  std::string certificate, key, authority;  // texts
  bool operator==(const TlsPems& other) const {
    return certificate == other.certificate && key == other.key && authority == other.authority;
  }
};

// Texts that belong together, as they are at the moment: files may be replaced while they are read, and then
// certificate and key do not fit. FAILED_PRECONDITION, which names the file as `names` calls it, where one
// can't be read, is no such PEM or longer than 1 MiB, where others than its owner may read the key or it is
// encrypted, or where the key is not the certificate's.
absl::StatusOr<TlsPems> ReadTlsPems(const TlsFiles& paths, const TlsFiles& names);

// INVALID_ARGUMENT, which names the first that is no absolute path.
absl::Status CheckTlsPaths(const TlsFiles& paths, const TlsFiles& names);

// When the first certificate of a PEM file ends, in seconds of Unix. FAILED_PRECONDITION, which names the
// file as `name` says, where it can't be read or has none.
absl::StatusOr<int64_t> CertificateFileEnd(const std::string& path, const std::string& name);

// "2027-01-31 12:00:00 UTC": when the first certificate of a PEM ends; empty where there is none.
std::string EndOfCertificate(const std::string& pem);

}  // namespace kiln
