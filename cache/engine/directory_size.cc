#include "cache/engine/directory_size.h"

#include <algorithm>
#include <vector>

namespace kiln {
namespace {

constexpr std::chrono::seconds kBetweenLooks(1);
constexpr uint64_t kLooksAnewBytesMin = 1u << 20;  // or when so many have been written, and a sixteenth

uint64_t DirectoryBytes(rocksdb::Env* env, const std::string& path) {
  std::vector<rocksdb::Env::FileAttributes> files;
  if (!env->GetChildrenFileAttributes(path, &files).ok()) return 0;
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.size_bytes;
  return bytes;
}

}  // namespace

uint64_t DirectorySize::Bytes() {
  absl::MutexLock lock(&mutex_);
  const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  const uint64_t much = std::max(kLooksAnewBytesMin, seen_ / 16);
  if (now >= next_look_ || written_since_ > much) {
    seen_ = DirectoryBytes(env_, path_);
    written_since_ = 0;
    next_look_ = now + kBetweenLooks;
  }
  return seen_ + written_since_;
}

void DirectorySize::Wrote(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  written_since_ += bytes;
}

void DirectorySize::Invalidate() {
  absl::MutexLock lock(&mutex_);
  next_look_ = {};
}

}  // namespace kiln
