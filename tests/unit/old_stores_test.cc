// Stores of builds that nobody runs go after 14 days. Everything else beside them stays.

#include "cache/chain/old_stores.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "cache/engine/rocksdb_store.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr char kOwn[] = "00112233445566778899";
constexpr char kOther[] = "99887766554433221100";

class OldStoresTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  std::unique_ptr<RocksdbStore> Open(const std::string& name) {
    RocksdbOptions options;
    options.directory = Path(name);
    auto store = RocksdbStore::Open(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  // Its files look as if nobody had touched them for so long.
  void Age(const std::string& name, int64_t seconds) {
    for (const fs::directory_entry& file : fs::directory_iterator(Path(name) + "/db")) {
      const timespec then = {time(nullptr) - seconds, 0};
      const timespec times[] = {then, then};
      ASSERT_EQ(utimensat(AT_FDCWD, file.path().c_str(), times, 0), 0);
    }
  }

  size_t Remove() { return RemoveOldStores(Path(kOwn), time(nullptr)); }
  bool Stays(const std::string& name) const { return fs::exists(Path(name)); }

  TemporaryDirectory directory_;
};

TEST_F(OldStoresTest, GoAfterFourteenDaysAndNotBefore) {
  Open(kOwn);
  Open(kOther);
  Age(kOwn, 10 * kOldStoreSeconds);
  Age(kOther, kOldStoreSeconds - 60);
  EXPECT_EQ(Remove(), 0u);
  EXPECT_TRUE(Stays(kOther));
  Age(kOther, kOldStoreSeconds + 60);
  EXPECT_EQ(Remove(), 1u);
  EXPECT_FALSE(Stays(kOther));
  EXPECT_TRUE(Stays(kOwn));
}

TEST_F(OldStoresTest, OpeningOneIsUsingIt) {
  Open(kOther);
  Age(kOther, 2 * kOldStoreSeconds);
  Open(kOther);
  EXPECT_EQ(Remove(), 0u);
}

TEST_F(OldStoresTest, OneThatAnotherProcessHasOpenStays) {
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  char byte = 0;
  const pid_t holder = fork();
  if (holder == 0) {
    close(done[1]);
    const auto store = Open(kOther);
    if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 0) _exit(1);
    _exit(0);
  }
  close(done[0]);
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Age(kOther, 2 * kOldStoreSeconds);
  EXPECT_EQ(Remove(), 0u);
  close(done[1]);
  waitpid(holder, nullptr, 0);
  Age(kOther, 2 * kOldStoreSeconds);
  EXPECT_EQ(Remove(), 1u) << "the control: nobody has it open any more";
}

TEST_F(OldStoresTest, WhatIsNoStoreOfABuildStays) {
  const std::string longer = std::string(kOther) + "0";
  for (const std::string& name : {std::string("my-models"), longer}) {
    Open(name);
    Age(name, 2 * kOldStoreSeconds);
  }
  fs::create_directories(Path(kOther) + "/db");  // no database in it
  std::ofstream(Path(kOther) + "/db/notes") << "mine";
  Age(kOther, 2 * kOldStoreSeconds);
  std::string linked = kOther;
  linked[0] = 'a';
  fs::create_directory_symlink(Path("my-models"), Path(linked));
  EXPECT_EQ(Remove(), 0u);
  EXPECT_TRUE(Stays("my-models"));
  EXPECT_TRUE(Stays(longer));
  EXPECT_TRUE(Stays(kOther));
  // A store that somebody named has no builds beside it.
  Open(linked = std::string(kOwn).replace(0, 1, "b"));
  Age(linked, 2 * kOldStoreSeconds);
  EXPECT_EQ(RemoveOldStores(Path("my-models"), time(nullptr)), 0u);
  EXPECT_EQ(Remove(), 1u);
}

}  // namespace
}  // namespace kiln
