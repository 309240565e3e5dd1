// Certificates of a test's own, good and bad in every way that a test asks for.
//
// Threads: one at a time. Errors: fatal failures of the test's process, for only a broken OpenSSL makes them.
#pragma once

#include <string>
#include <vector>

namespace kiln {

struct CertificateWish {
  std::string common_name = "a test's";
  std::vector<std::string> uris = {};
  std::vector<std::string> hosts = {};  // as "DNS:localhost", "IP:127.0.0.1"
  std::string usage = "clientAuth";     // of OpenSSL's extendedKeyUsage; empty: any
  long begins_seconds = -3600;          // from now
  long ends_seconds = 3600;
};

struct CertificatePair {
  std::string certificate, key;  // PEM
};

CertificatePair SelfSigned(const CertificateWish& wish);

class TestAuthority {
 public:
  TestAuthority();
  const std::string& certificate() const { return pair_.certificate; }
  CertificatePair Issue(const CertificateWish& wish) const;

 private:
  CertificatePair pair_;
};

}  // namespace kiln
