#include "server/listen/connection_table.h"

#include <sys/stat.h>

#include <algorithm>

namespace kiln {
namespace {

constexpr std::chrono::milliseconds kLookPause(20);

// 0 for what is no socket.
ino_t InodeOf(int descriptor) {
  struct stat facts;
  return fstat(descriptor, &facts) == 0 && S_ISSOCK(facts.st_mode) ? facts.st_ino : 0;
}

}  // namespace

bool ConnectionTable::Take(const std::string& owner, int descriptor) {
  if (!HasRoom(owner)) ForgetClosed();
  if (!HasRoom(owner)) return false;
  connections_.push_back({owner, descriptor, InodeOf(descriptor)});
  ++of_owner_[owner];
  return true;
}

std::map<std::string, size_t> ConnectionTable::Counts() {
  ForgetClosed();
  std::map<std::string, size_t> counts;
  for (const Connection& connection : connections_) ++counts[connection.owner];
  return counts;
}

bool ConnectionTable::HasRoom(const std::string& owner) const {
  const auto own = of_owner_.find(owner);
  return connections_.size() < all_max_ && (own == of_owner_.end() || own->second < owner_max_);
}

void ConnectionTable::ForgetClosed() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_look_ < kLookPause) return;
  last_look_ = now;
  const auto closed = [this](const Connection& connection) {
    if (InodeOf(connection.descriptor) == connection.inode) return false;
    --of_owner_[connection.owner];
    return true;
  };
  connections_.erase(std::remove_if(connections_.begin(), connections_.end(), closed), connections_.end());
}

}  // namespace kiln
