// Whose entries the store gives: every way in which one does not count, and what takes it out.
#include "cache/signatures.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "cache/checks/entry_envelope.h"
#include "cache/checks/verifying_store.h"
#include "cache/engine/memory_store.h"
#include "compiler/support/proto_util.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

class SignaturesTest : public testing::Test {
 protected:
  Signatures Load(const std::string& key, const std::function<void(v1::SigningConfig*)>& set = nullptr) {
    v1::SigningConfig config;
    config.set_key_file(absl::StrCat(directory_.path(), "/", key));
    if (set) set(&config);
    absl::StatusOr<Signatures> loaded = Signatures::Load(config);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *std::move(loaded);
  }
  static std::string PublicKey(const Signatures& signatures) {
    return absl::Base64Escape(signatures.Listed("")[0].public_key());
  }
  static void Trust(v1::SigningConfig* config, const std::string& public_key, const std::string& name_space) {
    v1::TrustedKeyConfig* trusted = config->add_trusted();
    trusted->set_public_key(public_key);
    if (!name_space.empty()) trusted->add_namespaces(name_space);
  }
  static void Trust(v1::SigningConfig* config, const Signatures& other, const std::string& name_space) {
    Trust(config, PublicKey(other), name_space);
  }

  TemporaryDirectory directory_;
};

// A store in which anybody can put anything.
struct Shelf {
  explicit Shelf(const Signatures* signatures, VerifyingStore::Mode mode = VerifyingStore::Mode::kVerify) {
    auto memory = std::make_unique<MemoryStore>(1 << 20);
    engine = memory.get();
    store = std::make_unique<VerifyingStore>(std::move(memory), mode, signatures);
  }
  void Put(const Entry& entry) {
    ASSERT_TRUE(engine->Put({{entry.id, MakeEntryValue(SealEntry(entry.id, *entry.value))}}).ok());
  }
  MemoryStore* engine;
  std::unique_ptr<VerifyingStore> store;
};

const EntryId kId = {EntryKind::kTuning, "key"};

Entry Changed(const Entry& entry, const std::function<void(v1::SignedEnvelope*)>& change) {
  v1::SignedEnvelope envelope = *OpenEnvelope(*entry.value);
  change(&envelope);
  return {entry.id, MakeEntryValue(SerializeDeterministic(envelope))};
}

TEST_F(SignaturesTest, WhatDoesNotCountIsAMissAndIsTakenOut) {
  const Signatures other = Load("other"), foreign = Load("foreign"), gone = Load("gone");
  const Signatures own = Load("own", [&](v1::SigningConfig* config) {
    Trust(config, other, "vision");
    Trust(config, gone, "vision");
    config->add_revoked(gone.key_id());
  });
  const Entry good = own.SignEntry(kId, "vision", "value");
  Entry elsewhere = good;
  elsewhere.id = {EntryKind::kTuning, "another"};
  Entry bare = good;
  bare.value = MakeEntryValue("value");
  struct Case {
    const char* what;
    Entry entry;
    bool counts;
  };
  const Case cases[] = {
      {"its own", good, true},
      {"a trusted key's", other.SignEntry(kId, "vision", "value"), true},
      {"a trusted key's, of another namespace", other.SignEntry(kId, "speech", "value"), false},
      {"a key's that nobody trusts", foreign.SignEntry(kId, "vision", "value"), false},
      {"a revoked key's", gone.SignEntry(kId, "vision", "value"), false},
      {"of another key of the store", elsewhere, false},
      {"as it was before there were signatures", bare, false},
      {"not signed", Changed(good, [](v1::SignedEnvelope* e) { e->clear_signature(); }), false},
      {"of another namespace", Changed(good, [](v1::SignedEnvelope* e) { e->set_namespace_("speech"); }),
       false},
      {"of other bytes", Changed(good, [](v1::SignedEnvelope* e) { e->set_value("valuf"); }), false},
      {"with a flipped bit",
       Changed(good, [](v1::SignedEnvelope* e) { e->mutable_signature()->front() ^= 1; }), false},
  };
  for (const Case& test : cases) {
    Shelf shelf(&own);
    shelf.Put(test.entry);
    const absl::StatusOr<EntryValue> got = shelf.store->Get(test.entry.id);
    EXPECT_EQ(got.ok(), test.counts) << test.what << ": " << got.status();
    EXPECT_EQ(shelf.store->refused_signatures(), test.counts ? 0 : 1) << test.what;
    EXPECT_EQ(shelf.engine->Get(test.entry.id).ok(), test.counts) << test.what << ": taken out";
    if (!test.counts) {
      EXPECT_EQ(got.status().code(), StatusCode::kNotFound) << test.what;
      EXPECT_EQ(shelf.store->Put({test.entry}).code(), StatusCode::kInvalidArgument) << test.what;
    }

    // The control: it is this check that refuses them.
    Shelf believing(&own, VerifyingStore::Mode::kDangerouslyBelieve);
    believing.Put(test.entry);
    EXPECT_TRUE(believing.store->Get(test.entry.id).ok()) << test.what;
  }
}

// A sweep asks what an entry names, whoever signed it; damage it takes out as everybody does.
TEST_F(SignaturesTest, WhoOnlyAsksWhatAnEntryNamesIsGivenIt) {
  const Signatures own = Load("own"), foreign = Load("foreign");
  Shelf shelf(&own);
  const Entry entry = foreign.SignEntry(kId, "vision", "value");
  shelf.Put(entry);
  EXPECT_TRUE(shelf.store->GetWhole(kId).ok());
  EXPECT_EQ(shelf.store->quarantined(), 0u);
  std::string damaged = SealEntry(kId, *entry.value);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  ASSERT_TRUE(shelf.engine->Put({{kId, MakeEntryValue(damaged)}}).ok());
  EXPECT_EQ(shelf.store->GetWhole(kId).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(shelf.store->quarantined(), 1u);
}

TEST_F(SignaturesTest, ObjectsAndNotesAreNotSigned) {
  const Signatures own = Load("own");
  Shelf shelf(&own);
  for (const Entry& entry : {PlainEntry(EntryKind::kObject, 1), PlainEntry(EntryKind::kMeta, 1)}) {
    ASSERT_TRUE(shelf.store->Put({entry}).ok());
    EXPECT_TRUE(shelf.store->Get(entry.id).ok());
  }
}

TEST_F(SignaturesTest, WhoReadsTakesItForNoOtherNamespace) {
  const Entry entry = Load("own").SignEntry(kId, "vision", "value");
  EXPECT_EQ(*OpenFor("vision", *entry.value), "value");
  EXPECT_EQ(OpenFor("speech", *entry.value).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenFor("vision", "no envelope").status().code(), StatusCode::kDataLoss);
}

// A manifest as clients are sent it is an envelope with a digest besides.
TEST_F(SignaturesTest, ASignedManifestIsAnEnvelope) {
  const Signatures own = Load("own");
  const v1::SignedEnvelope envelope = own.Sign({EntryKind::kManifest, "key"}, "vision", "manifest");
  v1::SignedManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(envelope.SerializeAsString()));
  EXPECT_EQ(manifest.manifest(), "manifest");
  EXPECT_EQ(manifest.namespace_(), "vision");
  manifest.set_digest(Sha256("manifest"));
  EXPECT_TRUE(own.Verify({EntryKind::kManifest, "key"}, SerializeDeterministic(manifest)).ok());
}

// A whole chain, over restarts: with the key replaced, with the old one trusted, and with that one revoked.
TEST_F(SignaturesTest, RotationAndRevocation) {
  const Signatures before = Load("before");
  v1::StoreConfig config;
  config.set_directory(directory_.path() + "/store");
  const auto open = [&](const Signatures& signatures) {
    StoreEnvironment environment;
    environment.signatures = &signatures;
    auto store = NewStore(config, environment);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  };
  ASSERT_TRUE(open(before)->artifacts().Put({before.SignEntry(kId, "vision", "value")}).ok());
  const Signatures keeping =
      Load("after", [&](v1::SigningConfig* config) { Trust(config, before, "vision"); });
  {
    const std::unique_ptr<Store> store = open(keeping);
    EXPECT_TRUE(store->artifacts().Get(kId).ok());
    EXPECT_EQ(store->Verify(false, [] { return false; })->corrupt, 0u);
  }
  const Signatures revoking = Load("after", [&](v1::SigningConfig* config) {
    Trust(config, before, "vision");
    config->add_revoked(before.key_id());
  });
  EXPECT_EQ(revoking.key_id(), keeping.key_id()) << "the file's";
  {
    const std::unique_ptr<Store> store = open(revoking);
    EXPECT_EQ(store->Verify(false, [] { return false; })->corrupt, 1u);
    EXPECT_EQ(store->Verify(/*repair=*/true, [] { return false; })->corrupt, 1u);
    EXPECT_EQ(store->statistics().refused_signatures, 1u);
    EXPECT_FALSE(store->catalog().Find(kId).ok()) << "it is gone, though nobody asked for it";
  }
  EXPECT_FALSE(open(keeping)->artifacts().Get(kId).ok());
}

TEST_F(SignaturesTest, AStoreWithoutThemGivesWhateverItHas) {
  v1::StoreConfig config;
  config.set_directory(directory_.path() + "/store");
  const Entry unsigned_entry = {kId, MakeEntryValue(Enveloped("value"))};
  {
    auto store = NewStore(config);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->artifacts().Put({unsigned_entry}).ok());
    EXPECT_TRUE((*store)->artifacts().Get(kId).ok());
  }
  const Signatures own = Load("own");
  StoreEnvironment environment;
  environment.signatures = &own;
  auto store = NewStore(config, environment);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->artifacts().Get(kId).status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*store)->statistics().refused_signatures, 1u);
}

// ---- Configuration ---------------------------------------------------------------------------

TEST_F(SignaturesTest, TenantsAreToldWhatCountsForThem) {
  const Signatures other = Load("other"), gone = Load("gone");
  const Signatures own = Load("own", [&](v1::SigningConfig* config) {
    Trust(config, other, "vision");
    config->mutable_trusted(0)->add_namespaces("speech");
    Trust(config, gone, "vision");
    config->add_revoked(gone.key_id());
  });
  EXPECT_EQ(own.Listed("").size(), 2u);
  EXPECT_EQ(own.Listed("").front().namespaces_size(), 0) << "every one";
  EXPECT_EQ(own.Listed("").back().namespaces_size(), 2);
  ASSERT_EQ(own.Listed("vision").size(), 2u);
  for (const v1::TrustedKey& key : own.Listed("vision")) {
    ASSERT_EQ(key.namespaces_size(), 1);
    EXPECT_EQ(key.namespaces(0), "vision");
  }
  EXPECT_EQ(own.Listed("nobody").size(), 1u);
}

TEST_F(SignaturesTest, RefusalsNameTheFieldAndTheFile) {
  const Signatures own = Load("own");
  const auto refusal = [&](const std::function<void(v1::SigningConfig*)>& set) {
    v1::SigningConfig config = own.config();
    set(&config);
    const absl::Status status = Signatures::Load(config).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const auto names = [](const std::string& message, const std::string& what) {
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  const auto trusting = [&](const std::string& public_key, const std::string& name_space) {
    return refusal([&](v1::SigningConfig* c) { Trust(c, public_key, name_space); });
  };
  names(trusting("no base64!", "vision"), "signing.trusted.public_key");
  names(trusting("c2hvcnQ=", "vision"), "signing.trusted.public_key");
  names(trusting(PublicKey(own), ""), "signing.trusted.namespaces");
  names(refusal([&](v1::SigningConfig* c) { c->add_revoked(own.key_id()); }), "signing.revoked");
  std::filesystem::permissions(own.config().key_file(), std::filesystem::perms(0640));
  names(refusal([](v1::SigningConfig*) {}), "chmod 600");
}

}  // namespace
}  // namespace kiln
