#include "compiler/support/signature.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

EVP_PKEY* Raw(const std::shared_ptr<void>& key) { return static_cast<EVP_PKEY*>(key.get()); }

std::shared_ptr<void> Own(EVP_PKEY* key) {
  return {key, [](void* owned) { EVP_PKEY_free(static_cast<EVP_PKEY*>(owned)); }};
}

std::string Message(const SignedSubject& subject) {
  return Sha256Builder()
      .AddField("kiln-signature-1")
      .AddField(subject.kind)
      .AddField(subject.name_space)
      .AddField(subject.key)
      .AddField(subject.bytes)
      .Finish();
}

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string Pem(EVP_PKEY* key) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::Status Cannot(absl::string_view what, const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

// A whole file with a name of its own, then linked to the name that all look at: who comes second has the
// first one's.
absl::Status MakeKeyFile(const std::string& path) {
  std::string own = path + ".XXXXXX";
  const int file = mkostemp(own.data(), O_CLOEXEC);  // 0600
  if (file < 0) return Cannot("make", path);
  const std::shared_ptr<void> key = Own(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const std::string pem = Pem(Raw(key));
  const bool written =
      write(file, pem.data(), pem.size()) == static_cast<ssize_t>(pem.size()) && fsync(file) == 0;
  absl::Status status;
  if (!written || (link(own.c_str(), path.c_str()) != 0 && errno != EEXIST)) status = Cannot("write", path);
  close(file);
  unlink(own.c_str());
  return status;
}

absl::StatusOr<std::string> ReadKeyFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) {
    if (errno == ENOENT) return absl::NotFoundError(path);
    if (errno == ELOOP)
      return absl::FailedPreconditionError(absl::StrCat(path, " is a link: name the file itself"));
    return Cannot("read", path);
  }
  struct stat facts = {};
  std::string pem(kSigningKeyFileBytesMax + 1, '\0');
  const bool known = fstat(file, &facts) == 0;
  const ssize_t size = read(file, pem.data(), pem.size());
  close(file);
  if (!known || size < 0) return Cannot("read", path);
  if (facts.st_uid != geteuid() || (facts.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " holds a private key, and has to be yours alone: chown it, and chmod 600"));
  }
  pem.resize(static_cast<size_t>(size));
  if (pem.size() > kSigningKeyFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is longer than ", kSigningKeyFileBytesMax, " bytes, and no file of one key"));
  }
  return pem;
}

}  // namespace

std::string KeyIdOf(absl::string_view public_key) { return ToHex(Sha256(public_key)); }

SigningKey::SigningKey(std::shared_ptr<void> key) : key_(std::move(key)), public_key_(kPublicKeyBytes, '\0') {
  size_t size = public_key_.size();
  EVP_PKEY_get_raw_public_key(Raw(key_), reinterpret_cast<unsigned char*>(public_key_.data()), &size);
  id_ = KeyIdOf(public_key_);
}

SigningKey SigningKey::Make() { return SigningKey(Own(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"))); }

absl::StatusOr<SigningKey> SigningKey::LoadOrMake(const std::string& path) {
  absl::StatusOr<std::string> pem = ReadKeyFile(path);
  if (absl::IsNotFound(pem.status())) {
    KILN_RETURN_IF_ERROR(MakeKeyFile(path));
    pem = ReadKeyFile(path);
  }
  if (!pem.ok()) return pem.status();
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(
      BIO_new_mem_buf(pem->data(), static_cast<int>(pem->size())), BIO_free);
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(memory.get(), nullptr, nullptr, nullptr);
  if (key == nullptr || EVP_PKEY_get_base_id(key) != EVP_PKEY_ED25519) {
    EVP_PKEY_free(key);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds no ed25519 key in PEM: `openssl genpkey -algorithm ed25519` makes one"));
  }
  return SigningKey(Own(key));
}

std::string SigningKey::Sign(const SignedSubject& subject) const {
  const std::string message = Message(subject);
  std::string signature(kSignatureBytes, '\0');
  size_t size = signature.size();
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  EVP_DigestSignInit(context, nullptr, nullptr, nullptr, Raw(key_));
  EVP_DigestSign(context, reinterpret_cast<unsigned char*>(signature.data()), &size, Bytes(message),
                 message.size());
  EVP_MD_CTX_free(context);
  return signature;
}

absl::Status TrustedKeys::Add(absl::string_view public_key, std::vector<std::string> namespaces) {
  EVP_PKEY* const key =
      public_key.size() != kPublicKeyBytes
          ? nullptr
          : EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, Bytes(public_key), public_key.size());
  if (key == nullptr) return absl::InvalidArgumentError("no ed25519 public key (32 bytes)");
  Key& entry = keys_[KeyIdOf(public_key)];
  entry.key = Own(key);
  entry.every_namespace |= namespaces.empty();
  for (std::string& name : namespaces) entry.namespaces.insert(std::move(name));
  return absl::OkStatus();
}

absl::Status TrustedKeys::Verify(const SignedSubject& subject, absl::string_view key_id,
                                 absl::string_view signature) const {
  if (signature.empty()) return absl::PermissionDeniedError("it is not signed");
  const auto found = keys_.find(key_id);
  if (found == keys_.end()) return absl::PermissionDeniedError("its key is not trusted");
  if (revoked_.contains(key_id)) return absl::PermissionDeniedError("its key is revoked");
  const Key& key = found->second;
  if (!key.every_namespace && !key.namespaces.contains(subject.name_space)) {
    return absl::PermissionDeniedError(
        absl::StrCat("its key is not trusted for namespace ", subject.name_space));
  }
  const std::string message = Message(subject);
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  const bool good =
      EVP_DigestVerifyInit(context, nullptr, nullptr, nullptr, Raw(key.key)) == 1 &&
      EVP_DigestVerify(context, Bytes(signature), signature.size(), Bytes(message), message.size()) == 1;
  EVP_MD_CTX_free(context);
  return good ? absl::OkStatus() : absl::DataLossError("its signature is of other bytes");
}

}  // namespace kiln
