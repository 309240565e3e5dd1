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
  std::string constraints = "critical,CA:FALSE";  // OpenSSL's basicConstraints
  std::string key_usage = {};                     // OpenSSL's keyUsage; empty: any
  bool unknown_critical = false;                  // an extension that nobody knows and everybody has to
};

struct CertificatePair {
  std::string certificate, key;  // PEM
};

CertificatePair SelfSigned(const CertificateWish& wish);
// Signed by `issuer`, whether or not that is an authority. The issuer's is not in the text.
CertificatePair IssuedBy(const CertificatePair& issuer, const CertificateWish& wish);
// The first certificate of a PEM with one bit of its signature changed.
std::string Tampered(const std::string& pem);

class TestAuthority {
 public:
  TestAuthority();
  const std::string& certificate() const { return pair_.certificate; }
  const CertificatePair& pair() const { return pair_; }
  CertificatePair Issue(const CertificateWish& wish) const;

 private:
  CertificatePair pair_;
};

}  // namespace kiln
