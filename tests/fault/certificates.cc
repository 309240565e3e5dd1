#include "tests/fault/certificates.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kiln {
namespace {

using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Memory = std::unique_ptr<BIO, decltype(&BIO_free)>;

void Need(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "certificates: %s\n", what);
  abort();
}

std::string TextOf(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return std::string(data, static_cast<size_t>(size));
}

void Extend(X509* certificate, int name, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, name, value.c_str());
  Need(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

void AddUnknownCritical(X509* certificate) {
  const std::unique_ptr<ASN1_OBJECT, decltype(&ASN1_OBJECT_free)> object(
      OBJ_txt2obj("1.3.6.1.4.1.55555.1", 1), ASN1_OBJECT_free);
  const std::unique_ptr<ASN1_OCTET_STRING, decltype(&ASN1_OCTET_STRING_free)> value(ASN1_OCTET_STRING_new(),
                                                                                    ASN1_OCTET_STRING_free);
  ASN1_OCTET_STRING_set(value.get(), reinterpret_cast<const unsigned char*>("x"), 1);
  X509_EXTENSION* const extension =
      X509_EXTENSION_create_by_OBJ(nullptr, object.get(), /*crit=*/1, value.get());
  Need(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "an unknown extension");
  X509_EXTENSION_free(extension);
}

// `authority` null: signed by itself.
CertificatePair Make(const CertificateWish& wish, const CertificatePair* authority) {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate certificate(X509_new(), X509_free);
  static std::atomic<long> serial = 0;  // a test may issue certificates in threads
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), wish.begins_seconds);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), wish.ends_seconds);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(wish.common_name.c_str()), -1, -1, 0);
  std::vector<std::string> names = wish.hosts;
  for (const std::string& uri : wish.uris) names.push_back(absl::StrCat("URI:", uri));
  if (!names.empty()) Extend(certificate.get(), NID_subject_alt_name, absl::StrJoin(names, ","));
  if (!wish.usage.empty()) Extend(certificate.get(), NID_ext_key_usage, wish.usage);
  if (!wish.key_usage.empty()) Extend(certificate.get(), NID_key_usage, wish.key_usage);
  Extend(certificate.get(), NID_basic_constraints, wish.constraints);
  if (wish.unknown_critical) AddUnknownCritical(certificate.get());
  Key signer(nullptr, EVP_PKEY_free);
  if (authority != nullptr) {
    const Memory text(BIO_new_mem_buf(authority->certificate.data(), -1), BIO_free);
    const Certificate issuer(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
    const Memory key_text(BIO_new_mem_buf(authority->key.data(), -1), BIO_free);
    signer.reset(PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr));
  } else {
    X509_set_issuer_name(certificate.get(), name);
  }
  Need(X509_sign(certificate.get(), signer != nullptr ? signer.get() : key.get(), EVP_sha256()) > 0, "sign");
  const Memory pem(BIO_new(BIO_s_mem()), BIO_free), key_pem(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(pem.get(), certificate.get());
  PEM_write_bio_PrivateKey(key_pem.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {TextOf(pem.get()), TextOf(key_pem.get())};
}

}  // namespace

CertificatePair SelfSigned(const CertificateWish& wish) { return Make(wish, nullptr); }

CertificatePair IssuedBy(const CertificatePair& issuer, const CertificateWish& wish) {
  return Make(wish, &issuer);
}

std::string Tampered(const std::string& pem) {
  const Memory text(BIO_new_mem_buf(pem.data(), -1), BIO_free);
  const Certificate certificate(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), X509_free);
  unsigned char* der = nullptr;
  const int size = i2d_X509(certificate.get(), &der);
  Need(size > 0, "a certificate");
  der[size - 1] ^= 1;  // the signature is last
  const Memory out(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio(out.get(), PEM_STRING_X509, "", der, size);
  OPENSSL_free(der);
  return TextOf(out.get());
}

TestAuthority::TestAuthority() {
  static int number = 0;
  CertificateWish wish;
  wish.common_name = absl::StrCat("authority ", ++number);
  wish.usage = "";
  wish.constraints = "critical,CA:TRUE";
  pair_ = Make(wish, nullptr);
}

CertificatePair TestAuthority::Issue(const CertificateWish& wish) const { return Make(wish, &pair_); }

}  // namespace kiln
