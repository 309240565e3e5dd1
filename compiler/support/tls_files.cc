#include "compiler/support/tls_files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status Refuse(const std::string& name, const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(name, ": ", path, " ", why));
}

absl::StatusOr<std::string> ReadFile(const std::string& name, const std::string& path, bool secret) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return Refuse(name, path, absl::StrCat("cannot be read: ", strerror(errno)));
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat facts;
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return Refuse(name, path, "is no file");
  if (secret && (facts.st_mode & 0077) != 0) {
    return Refuse(name, path, "may be read by others than its owner: chmod 600");
  }
  std::string text(kTlsFileBytesMax + 1, '\0');
  size_t size = 0;
  ssize_t got;
  while (size < text.size() && (got = read(file, text.data() + size, text.size() - size)) != 0) {
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Refuse(name, path, absl::StrCat("cannot be read: ", strerror(errno)));
    size += static_cast<size_t>(got);
  }
  if (size > kTlsFileBytesMax) return Refuse(name, path, "is longer than 1 MiB");
  text.resize(size);
  return text;
}

std::unique_ptr<BIO, decltype(&BIO_free)> InMemory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

Certificate FirstCertificate(const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(InMemory(pem).get(), nullptr, nullptr, nullptr), X509_free);
  ERR_clear_error();
  return certificate;
}

Key FirstKey(const std::string& pem) {
  // Nobody is asked for a password.
  const auto none = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(InMemory(pem).get(), nullptr, none, nullptr), EVP_PKEY_free);
  ERR_clear_error();
  return key;
}

}  // namespace

absl::StatusOr<TlsPems> ReadTlsPems(const TlsFiles& paths, const TlsFiles& names) {
  TlsPems pems;
  KILN_ASSIGN_OR_RETURN(pems.authority, ReadFile(names.authority, paths.authority, false));
  KILN_ASSIGN_OR_RETURN(pems.certificate, ReadFile(names.certificate, paths.certificate, false));
  KILN_ASSIGN_OR_RETURN(pems.key, ReadFile(names.key, paths.key, true));
  if (FirstCertificate(pems.authority) == nullptr) {
    return Refuse(names.authority, paths.authority, "holds no certificate (PEM)");
  }
  const Certificate certificate = FirstCertificate(pems.certificate);
  if (certificate == nullptr) {
    return Refuse(names.certificate, paths.certificate, "holds no certificate (PEM)");
  }
  const Key key = FirstKey(pems.key);
  if (key == nullptr) return Refuse(names.key, paths.key, "holds no private key (PEM, not encrypted)");
  const bool fits = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return Refuse(names.key, paths.key,
                  absl::StrCat("is not the key of the certificate in ", paths.certificate));
  }
  return pems;
}

absl::Status CheckTlsPaths(const TlsFiles& paths, const TlsFiles& names) {
  for (const auto file : {&TlsFiles::certificate, &TlsFiles::key, &TlsFiles::authority}) {
    if ((paths.*file).empty() || (paths.*file).front() != '/')
      return absl::InvalidArgumentError(absl::StrCat(names.*file, ": is no absolute path"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CertificateFileEnd(const std::string& path, const std::string& name) {
  KILN_ASSIGN_OR_RETURN(const std::string pem, ReadFile(name, path, /*secret=*/false));
  const Certificate certificate = FirstCertificate(pem);
  tm end = {};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1)
    return Refuse(name, path, "holds no certificate (PEM)");
  return timegm(&end);
}

std::string EndOfCertificate(const std::string& pem) {
  const Certificate certificate = FirstCertificate(pem);
  tm end = {};
  if (certificate == nullptr || ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) return "";
  return absl::StrFormat("%04d-%02d-%02d %02d:%02d:%02d UTC", end.tm_year + 1900, end.tm_mon + 1, end.tm_mday,
                         end.tm_hour, end.tm_min, end.tm_sec);
}

}  // namespace kiln
