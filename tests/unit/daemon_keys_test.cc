// Which manifests a client takes from its daemon, by what the daemon said of itself.
#include "client/src/daemon_keys.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/protocol.h"
#include "gtest/gtest.h"
#include "kiln/client.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

constexpr char kUnix[] = "unix:/run/kiln/kilnd.sock";
constexpr char kTcp[] = "127.0.0.1:7711";

v1::Manifest ManifestOf(const std::string& name_space) {
  v1::Manifest manifest;
  manifest.set_namespace_(name_space);
  manifest.set_compile_key(Sha256("compile"));
  manifest.set_variant_id(Sha256("variant"));
  return manifest;
}

v1::SignedManifest SignedBy(const SigningKey& key, const v1::Manifest& manifest) {
  v1::SignedManifest made;
  made.set_manifest(manifest.SerializeAsString());
  made.set_digest(Sha256(made.manifest()));
  made.set_key_id(key.id());
  made.set_signature(
      key.Sign({"manifest", manifest.namespace_(),
                absl::StrCat(manifest.compile_key(), manifest.variant_id()), made.manifest()}));
  return made;
}

v1::HelloReply HelloOf(const SigningKey& key, const std::string& tenant = "",
                       const std::vector<std::string>& namespaces = {}) {
  v1::HelloReply hello;
  hello.set_protocol(kSigningProtocol);
  hello.set_tenant(tenant);
  v1::TrustedKey* listed = hello.add_trusted_keys();
  listed->set_public_key(key.public_key());
  for (const std::string& name : namespaces) listed->add_namespaces(name);
  return hello;
}

TEST(DaemonKeys, TakesWhatAListedKeyHasSigned) {
  const SigningKey key = SigningKey::Make(), other = SigningKey::Make();
  const v1::Manifest manifest = ManifestOf("default");
  const DaemonKeys keys(HelloOf(key), kUnix, "default", {});
  EXPECT_TRUE(keys.Check(SignedBy(key, manifest), manifest).ok());
  EXPECT_EQ(keys.Check(SignedBy(other, manifest), manifest).code(), StatusCode::kDataLoss);

  v1::SignedManifest flipped = SignedBy(key, manifest);
  flipped.mutable_manifest()->back() ^= 1;
  flipped.set_digest(Sha256(flipped.manifest()));
  EXPECT_EQ(keys.Check(flipped, manifest).code(), StatusCode::kDataLoss)
      << "though its digest was made to fit";
}

// A daemon of today that signs nothing is none of ours.
TEST(DaemonKeys, RefusesWhatIsNotSigned) {
  const SigningKey key = SigningKey::Make();
  const v1::Manifest manifest = ManifestOf("default");
  v1::SignedManifest bare = SignedBy(key, manifest);
  bare.clear_signature();
  EXPECT_EQ(DaemonKeys(HelloOf(key), kUnix, "default", {}).Check(bare, manifest).code(),
            StatusCode::kDataLoss);
  v1::HelloReply listing_none;
  listing_none.set_protocol(kSigningProtocol);
  EXPECT_EQ(DaemonKeys(listing_none, kUnix, "default", {}).Check(bare, manifest).code(),
            StatusCode::kDataLoss);
}

TEST(DaemonKeys, AKeyCountsForTheCallersNamespaces) {
  const SigningKey key = SigningKey::Make();
  const v1::Manifest vision = ManifestOf("vision"), speech = ManifestOf("speech");
  const auto takes = [&](const v1::HelloReply& hello, const v1::Manifest& manifest) {
    return DaemonKeys(hello, kUnix, "default", {}).Check(SignedBy(key, manifest), manifest).ok();
  };
  EXPECT_TRUE(takes(HelloOf(key, "vision"), vision));
  EXPECT_FALSE(takes(HelloOf(key, "vision"), speech));
  EXPECT_FALSE(takes(HelloOf(key), vision)) << "of a daemon without tenants: what was asked for";
  EXPECT_TRUE(takes(HelloOf(key, "vision", {"vision", "speech"}), speech)) << "one that it may read";
}

TEST(DaemonKeys, NamedKeysNarrowTheListedOnes) {
  const SigningKey key = SigningKey::Make(), other = SigningKey::Make();
  const v1::Manifest manifest = ManifestOf("default");
  const auto takes = [&](const v1::HelloReply& hello, const std::vector<std::string>& only) {
    return DaemonKeys(hello, kUnix, "default", only).Check(SignedBy(key, manifest), manifest).ok();
  };
  EXPECT_TRUE(takes(HelloOf(key), {other.public_key(), key.public_key()}));
  EXPECT_FALSE(takes(HelloOf(key), {other.public_key()}));
  EXPECT_FALSE(takes(HelloOf(other), {key.public_key()})) << "they add none";
}

// Protocol 1 signs nothing.
TEST(DaemonKeys, AnOlderDaemonIsBelievedOnASocketAlone) {
  v1::HelloReply older;
  older.set_protocol(1);
  const v1::Manifest manifest = ManifestOf("default");
  v1::SignedManifest made;
  made.set_manifest(manifest.SerializeAsString());
  EXPECT_TRUE(DaemonKeys(older, kUnix, "default", {}).Check(made, manifest).ok())
      << "of before there was a digest";
  made.set_digest(Sha256(made.manifest()));
  EXPECT_TRUE(DaemonKeys(older, kUnix, "default", {}).Check(made, manifest).ok());
  made.set_digest(Sha256("another"));
  EXPECT_EQ(DaemonKeys(older, kUnix, "default", {}).Check(made, manifest).code(), StatusCode::kDataLoss);

  made.set_digest(Sha256(made.manifest()));
  EXPECT_EQ(DaemonKeys(older, kTcp, "default", {}).Check(made, manifest).code(),
            StatusCode::kFailedPrecondition);
  const DaemonKeys narrowed(older, kUnix, "default", {SigningKey::Make().public_key()});
  EXPECT_EQ(narrowed.Check(made, manifest).code(), StatusCode::kFailedPrecondition);
}

TEST(TrustedKeysText, IsKeysOrAFile) {
  const std::string first = absl::Base64Escape(SigningKey::Make().public_key());
  const std::string second = absl::Base64Escape(SigningKey::Make().public_key());
  EXPECT_EQ(ReadTrustedKeys(first)->size(), 1u);
  EXPECT_EQ(ReadTrustedKeys(absl::StrCat(first, ", ", second))->size(), 2u);
  const std::string slashes = absl::StrCat(std::string(42, '/'), "8=");
  EXPECT_EQ(ReadTrustedKeys(slashes)->front(), std::string(kPublicKeyBytes, '\xff')) << "base64, and no file";

  const std::string path = absl::StrCat("/tmp/kiln-trusted-keys-", getpid());
  std::ofstream(path) << "# the farm's\n" << first << "\n\n" << second << "\n";
  EXPECT_EQ(ReadTrustedKeys(path)->size(), 2u);
  std::ofstream(path) << first << "\nnonsense\n";
  EXPECT_NE(ReadTrustedKeys(path).status().message().find("nonsense"), absl::string_view::npos);
  std::ofstream(path) << "# none\n";
  EXPECT_FALSE(ReadTrustedKeys(path).ok());
  std::filesystem::remove(path);
  for (const std::string& bad : {path, std::string("c2hvcnQ="), std::string(","), std::string("keys.txt")}) {
    EXPECT_EQ(ReadTrustedKeys(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace kiln
