// Signatures: what counts, and every way in which one does not.
#include "compiler/support/signature.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "compiler/support/compiler_limits.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

constexpr SignedSubject kSubject{"manifest", "vision", "key", "bytes"};

TrustedKeys Trusting(const SigningKey& key, std::vector<std::string> namespaces = {}) {
  TrustedKeys trusted;
  EXPECT_TRUE(trusted.Add(key.public_key(), std::move(namespaces)).ok());
  return trusted;
}

TEST(Signature, CountsForWhatWasSignedAlone) {
  const SigningKey key = SigningKey::Make();
  const TrustedKeys trusted = Trusting(key);
  const std::string signature = key.Sign(kSubject);
  EXPECT_TRUE(trusted.Verify(kSubject, key.id(), signature).ok());

  // The last: the same letters, divided otherwise.
  for (const SignedSubject& other : {SignedSubject{"kernel", "vision", "key", "bytes"},
                                     SignedSubject{"manifest", "speech", "key", "bytes"},
                                     SignedSubject{"manifest", "vision", "yek", "bytes"},
                                     SignedSubject{"manifest", "vision", "key", "byte"},
                                     SignedSubject{"manifest", "visionk", "ey", "bytes"}}) {
    EXPECT_EQ(trusted.Verify(other, key.id(), signature).code(), StatusCode::kDataLoss);
  }
}

TEST(Signature, WithAnyBitFlippedDoesNotCount) {
  const SigningKey key = SigningKey::Make();
  const TrustedKeys trusted = Trusting(key);
  const std::string signature = key.Sign(kSubject);
  for (size_t bit = 0; bit < signature.size() * 8; ++bit) {
    std::string flipped = signature;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(trusted.Verify(kSubject, key.id(), flipped).ok()) << bit;
  }
  for (size_t size = 0; size < signature.size(); ++size) {
    EXPECT_FALSE(trusted.Verify(kSubject, key.id(), signature.substr(0, size)).ok()) << size;
  }
}

TEST(Signature, CountsForTheNamespacesOfItsKey) {
  const SigningKey key = SigningKey::Make();
  const std::string signature = key.Sign(kSubject);
  EXPECT_TRUE(Trusting(key, {"speech", "vision"}).Verify(kSubject, key.id(), signature).ok());
  EXPECT_EQ(Trusting(key, {"speech"}).Verify(kSubject, key.id(), signature).code(),
            StatusCode::kPermissionDenied);
}

TEST(Signature, OfAnotherOrARevokedKeyDoesNotCount) {
  const SigningKey key = SigningKey::Make();
  const SigningKey other = SigningKey::Make();
  TrustedKeys trusted = Trusting(key);
  EXPECT_EQ(trusted.Verify(kSubject, other.id(), other.Sign(kSubject)).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(trusted.Verify(kSubject, key.id(), other.Sign(kSubject)).code(), StatusCode::kDataLoss);
  EXPECT_EQ(trusted.Verify(kSubject, key.id(), "").code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE(trusted.Verify(kSubject, key.id(), key.Sign(kSubject)).ok());
  trusted.Revoke(key.id());
  EXPECT_EQ(trusted.Verify(kSubject, key.id(), key.Sign(kSubject)).code(), StatusCode::kPermissionDenied);
}

TEST(Signature, OfNoKeyIsRefused) {
  TrustedKeys trusted;
  EXPECT_EQ(trusted.Add("short").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(trusted.empty());
}

class KeyFile : public testing::Test {
 protected:
  KeyFile() {
    std::string name = testing::TempDir() + "kiln-keys-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/signing.pem";
  }
  ~KeyFile() override { std::filesystem::remove_all(directory_); }
  StatusCode Code() { return SigningKey::LoadOrMake(path_).status().code(); }

  std::string directory_;
  std::string path_;
};

TEST_F(KeyFile, IsMadeOnceAndIsItsOwnersAlone) {
  std::vector<std::string> ids(16);
  std::vector<std::thread> threads;
  for (std::string& id : ids) {
    threads.emplace_back([&id, this] {
      const absl::StatusOr<SigningKey> key = SigningKey::LoadOrMake(path_);
      ASSERT_TRUE(key.ok()) << key.status();
      id = key->id();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& id : ids) EXPECT_EQ(id, ids[0]);
  struct stat facts = {};
  ASSERT_EQ(stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory_)) ++files;
  EXPECT_EQ(files, 1u);
}

TEST_F(KeyFile, ThatOthersMayReadIsRefused) {
  ASSERT_TRUE(SigningKey::LoadOrMake(path_).ok());
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_EQ(Code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  EXPECT_EQ(Code(), StatusCode::kOk);
}

TEST_F(KeyFile, ThatIsALinkIsRefused) {
  ASSERT_TRUE(SigningKey::LoadOrMake(path_).ok());
  std::filesystem::rename(path_, directory_ + "/elsewhere");
  std::filesystem::create_symlink(directory_ + "/elsewhere", path_);
  EXPECT_EQ(Code(), StatusCode::kFailedPrecondition);
}

// What stands after a key is none of its business, up to the limit.
TEST_F(KeyFile, HasALimitedLength) {
  ASSERT_TRUE(SigningKey::LoadOrMake(path_).ok());
  std::filesystem::resize_file(path_, kSigningKeyFileBytesMax);
  EXPECT_EQ(Code(), StatusCode::kOk);
  std::filesystem::resize_file(path_, kSigningKeyFileBytesMax + 1);
  const absl::Status status = SigningKey::LoadOrMake(path_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("longer than 16384 bytes"), absl::string_view::npos) << status;
}

TEST_F(KeyFile, OfNoEd25519KeyIsRefused) {
  std::ofstream(path_) << "no key\n";
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  EXPECT_EQ(Code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kiln
