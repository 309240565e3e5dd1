// The store as it is put together from its configuration.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cache/chain/store_config.h"
#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"
#include "tests/unit/store_options.h"

namespace kiln {
namespace {

using StatusCode = absl::StatusCode;

TEST(NewStoreTest, WhatAnotherProcessHasIsLeftAloneAndMemoryServes) {
  TemporaryDirectory directory;
  auto first = NewStore(Config(directory.path()));
  ASSERT_TRUE(first.ok());
  auto second = NewStore(Config(directory.path()), StoreEnvironment(), WhereInUse::kMemoryOnly);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_FALSE((*second)->statistics().writable);
  EXPECT_NE((*second)->statistics().message.find("in use"), std::string::npos);
  const Entry entry = ObjectEntry(/*seed=*/7, /*size=*/100);
  EXPECT_EQ((*second)->artifacts().Put({entry}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE((*second)->artifacts().Get(entry.id).ok());
  EXPECT_EQ((*first)->artifacts().Get(entry.id).status().code(), StatusCode::kNotFound);
}

TEST(NewStoreTest, BadConfigurationsNameTheField) {
  absl::Status no_directory = NewStore(v1::StoreConfig()).status();
  EXPECT_EQ(no_directory.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(no_directory.message().find("store.directory"), absl::string_view::npos);
  TemporaryDirectory directory;
  v1::StoreConfig tiny = Config(directory.path());
  tiny.set_budget_bytes(1000);
  EXPECT_NE(NewStore(tiny).status().message().find("store.budget_bytes"), absl::string_view::npos);
}

TEST(NewStoreTest, DirectoryThatOthersCanWriteIsRefused) {
  TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  EXPECT_EQ(NewStore(Config(directory.path())).status().code(), StatusCode::kFailedPrecondition);
}

TEST(NewStoreTest, DirectoryBelowOneThatOthersCanWriteIsRefused) {
  TemporaryDirectory directory;
  const std::string parent = directory.path() + "/parent";
  for (const bool open : {true, false}) {
    std::filesystem::create_directory(parent);
    std::filesystem::permissions(parent,
                                 open ? std::filesystem::perms::all : std::filesystem::perms::owner_all);
    const absl::Status status = NewStore(Config(parent + "/store")).status();
    EXPECT_EQ(status.code(), open ? StatusCode::kFailedPrecondition : StatusCode::kOk) << status;
  }
}

TEST(NewStoreTest, DirectoryThatCannotBeMadeGivesMemoryOnly) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "in the way";
  auto store = NewStore(Config(directory.path() + "/file/store"));
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->statistics().writable);
  EXPECT_FALSE((*store)->statistics().message.empty());
  EXPECT_EQ((*store)->artifacts().Put({Tuning("a")}).code(), StatusCode::kPermissionDenied);
  EXPECT_TRUE((*store)->artifacts().Get(Tuning("a").id).ok());
}

TEST(NewStoreTest, VerifyFindsDamageAndRepairs) {
  TemporaryDirectory directory;
  std::vector<Entry> batch = ArtifactBatch(1, 3, 5'000);
  auto store = NewStore(Config(directory.path()));
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->artifacts().Put(batch).ok());
  auto clean = (*store)->Verify(false, [] { return false; });
  ASSERT_TRUE(clean.ok());
  EXPECT_EQ(clean->objects, 3u);
  EXPECT_EQ(clean->entries, 5u);
  EXPECT_EQ(clean->corrupt + clean->missing, 0u);
  int asked = 0;
  EXPECT_EQ((*store)->Verify(false, [&asked] { return ++asked == 3; }).status().code(),
            StatusCode::kCancelled);
  EXPECT_EQ(asked, 3) << "it goes on after its caller";
  store->reset();
  {
    auto engine = RocksdbStore::Open(Options(directory.path()));
    ASSERT_TRUE(engine.ok());
    std::string bytes = **(*engine)->Get(batch[0].id);
    bytes[bytes.size() / 2] ^= 4;
    ASSERT_TRUE((*engine)->Put({{batch[0].id, MakeEntryValue(bytes)}}).ok());
  }
  store = NewStore(Config(directory.path()));
  ASSERT_TRUE(store.ok());
  EXPECT_EQ((*store)->Verify(false, [] { return false; })->corrupt, 1u);
  EXPECT_EQ((*store)->Verify(true, [] { return false; })->corrupt, 1u);
  auto repaired = (*store)->Verify(false, [] { return false; });
  EXPECT_EQ(repaired->corrupt, 0u);
  EXPECT_EQ(repaired->missing, 2u);  // the manifest and the kernel name what is gone
  EXPECT_EQ((*store)->artifacts().Get(batch[6].id).status().code(), StatusCode::kNotFound);
  EXPECT_EQ((*store)->statistics().quarantined, 1u);
}

}  // namespace
}  // namespace kiln
