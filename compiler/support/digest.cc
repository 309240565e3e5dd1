#include "compiler/support/digest.h"

#include <openssl/evp.h>

#include <cstdint>

#include "absl/strings/escaping.h"

namespace kiln {

struct Sha256Builder::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256Builder::Sha256Builder() : state_(std::make_unique<State>()) {
  // Found once: OpenSSL 3 looks EVP_sha256() up by its name each time, which costs more than a short digest.
  static const EVP_MD* const kSha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_DigestInit_ex2(state_->context, kSha256, nullptr);
}
Sha256Builder::~Sha256Builder() = default;

Sha256Builder& Sha256Builder::Add(absl::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
  return *this;
}

Sha256Builder& Sha256Builder::AddNumber(uint64_t number) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  EVP_DigestUpdate(state_->context, bytes, sizeof(bytes));
  return *this;
}

Sha256Builder& Sha256Builder::AddField(absl::string_view bytes) { return AddNumber(bytes.size()).Add(bytes); }

std::string Sha256Builder::Finish() {
  std::string digest(kDigestBytes, '\0');
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(digest.data()), &size);
  return digest;
}

std::string Sha256(absl::string_view bytes) { return Sha256Builder().Add(bytes).Finish(); }

std::string ToHex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

absl::StatusOr<std::string> FromHex(absl::string_view hex) {
  if (hex.size() % 2 != 0) return absl::InvalidArgumentError("hexadecimal text of odd length");
  for (char c : hex) {
    bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!digit) return absl::InvalidArgumentError("not hexadecimal text");
  }
  return absl::HexStringToBytes(hex);
}

}  // namespace kiln
