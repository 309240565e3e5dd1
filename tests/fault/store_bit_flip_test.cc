// Flipped bits in the bytes of live entries on disk. Promise: a wrong byte is never served; the entry is
// a miss. The control, without any check, has to serve one: else the flips missed.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "cache/chain/store_config.h"
#include "gtest/gtest.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

int Flips() { return std::getenv("KILN_FULL") != nullptr ? 1'000 : 200; }
constexpr int kFlipsADatabase = 10;

struct Range {
  fs::path file;
  size_t offset;
  size_t size;
};

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::unique_ptr<Store> Open(const std::string& directory, bool no_verify) {
  v1::StoreConfig config;
  config.set_directory(directory);
  config.set_dangerously_no_verify(no_verify);
  auto store = NewStore(config);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

class StoreBitFlipTest : public testing::Test {
 protected:
  // Half of the entries lie in tables and blob files, half still in the log.
  void SetUp() override {
    for (int half = 0; half < 2; ++half) {
      auto store = Open(pristine_.path(), false);
      ASSERT_NE(store, nullptr);
      for (int i = 0; i < 12; ++i) {
        std::vector<Entry> batch = ArtifactBatch(half * 100 + i, 3, 200 + 2'000 * (i % 6));
        ASSERT_TRUE(store->artifacts().Put(batch).ok());
        entries_.insert(entries_.end(), batch.begin(), batch.end());
      }
    }
    FindRanges();
  }

  // Where in the files the bytes of the entries lie.
  void FindRanges() {
    for (const auto& file : fs::directory_iterator(pristine_.path() + "/db")) {
      std::string extension = file.path().extension();
      if (extension != ".sst" && extension != ".blob" && extension != ".log") continue;
      std::string bytes = ReadFile(file.path());
      for (const Entry& entry : entries_) {
        std::string start = entry.value->substr(0, 48);
        size_t offset = start.size() < 5 ? std::string::npos : bytes.find(start);
        if (offset == std::string::npos) continue;
        size_t size = 0;
        while (size < entry.value->size() && bytes[offset + size] == (*entry.value)[size]) ++size;
        ranges_[extension].push_back({file.path().filename(), offset, size});
      }
    }
  }

  // Flips bits in files of one kind of a copy of the database, and reads every entry.
  void RunOn(const std::string& extension, int flips, bool no_verify, std::mt19937_64* random) {
    ASSERT_FALSE(ranges_[extension].empty()) << extension;
    TemporaryDirectory directory;
    fs::copy(pristine_.path(), directory.path(), fs::copy_options::recursive);
    for (int i = 0; i < flips; ++i) {
      const Range& range = ranges_[extension][(*random)() % ranges_[extension].size()];
      fs::path path = fs::path(directory.path()) / "db" / range.file;
      std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
      size_t offset = range.offset + (*random)() % range.size;
      file.seekg(offset);
      char byte = static_cast<char>(file.get() ^ (1 << (*random)() % 8));
      file.seekp(offset);
      file.put(byte);
      ASSERT_TRUE(file.good());
    }
    auto store = Open(directory.path(), no_verify);
    ASSERT_NE(store, nullptr);
    for (const Entry& entry : entries_) {
      auto value = store->artifacts().Get(entry.id);
      if (!value.ok()) {
        EXPECT_TRUE(absl::IsNotFound(value.status())) << value.status();
        ++missed_;
      } else if (**value == *entry.value) {
        ++right_;
      } else {
        ++wrong_;
      }
    }
    // What was lost can be put anew.
    if (!no_verify) {
      ASSERT_TRUE(store->artifacts().Put(entries_).ok());
      auto verified = store->Verify(false, [] { return false; });
      ASSERT_TRUE(verified.ok()) << verified.status();
      EXPECT_EQ(verified->corrupt, 0u);
      EXPECT_EQ(verified->missing, 0u);
    }
  }

  void Run(int flips, bool no_verify) {
    std::mt19937_64 random(20261121);
    const char* const extensions[] = {".sst", ".blob", ".log", ".blob"};
    for (int done = 0, turn = 0; done < flips; done += kFlipsADatabase, ++turn) {
      RunOn(extensions[turn % 4], kFlipsADatabase, no_verify, &random);
    }
    std::printf("%d flips: %zu entries served right, %zu missed, %zu served wrong\n", flips, right_, missed_,
                wrong_);
  }

  TemporaryDirectory pristine_;
  std::vector<Entry> entries_;
  std::map<std::string, std::vector<Range>> ranges_;
  size_t right_ = 0, missed_ = 0, wrong_ = 0;
};

TEST_F(StoreBitFlipTest, NoWrongByteIsServed) {
  Run(Flips(), /*no_verify=*/false);
  EXPECT_EQ(wrong_, 0u);
  EXPECT_GT(missed_, static_cast<size_t>(Flips() / 10));
  EXPECT_GT(right_, missed_);
}

TEST_F(StoreBitFlipTest, ControlWithoutChecksServesWrongBytes) {
  Run(40, /*no_verify=*/true);
  EXPECT_GT(wrong_, 0u);
}

}  // namespace
}  // namespace kiln
