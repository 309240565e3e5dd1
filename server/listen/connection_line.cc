#include "server/listen/connection_line.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace kiln {
namespace {

// Whatever it has said before.
bool HungUp(int descriptor) {
  pollfd wait = {descriptor, POLLRDHUP, 0};
  return poll(&wait, 1, 0) == 1 && (wait.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

ConnectionLine::~ConnectionLine() {
  for (const auto& [name, owner] : owners_) {
    for (const Waiting& waiting : owner.waiting) close(waiting.connection.descriptor);
  }
}

void ConnectionLine::Owner::Earn(MonotonicTime now) {
  turns = std::min(kAtOnce, turns + kPerSecond * SecondsBetween(at, now));
  at = now;
}

ConnectionLine::Turn ConnectionLine::Arrive(const std::string& name, Connection connection,
                                            MonotonicTime now) {
  const auto [found, first] = owners_.try_emplace(name);
  Owner& owner = found->second;
  if (first) owner.at = now;
  owner.Earn(now);
  if (owner.waiting.empty() && owner.turns >= 1) {
    --owner.turns;
    return Turn::kNow;
  }
  if (waiting_ >= waiting_max_ || owner.waiting.size() >= waiting_max_ / 2) {
    close(connection.descriptor);
    return Turn::kNever;
  }
  owner.waiting.push_back({connection, now});
  ++waiting_;
  return Turn::kLater;
}

std::vector<ConnectionLine::Connection> ConnectionLine::Due(MonotonicTime now) {
  std::vector<Connection> due;
  for (auto& [name, owner] : owners_) {
    owner.Earn(now);
    CloseOverdue(owner, now);
    while (!owner.waiting.empty() && owner.turns >= 1) {
      const Connection connection = owner.waiting.front().connection;
      owner.waiting.pop_front();
      --waiting_;
      if (HungUp(connection.descriptor)) {
        close(connection.descriptor);
        continue;
      }
      --owner.turns;
      due.push_back(connection);
    }
  }
  absl::erase_if(owners_, [](const auto& owner) {
    return owner.second.waiting.empty() && owner.second.turns >= kAtOnce;
  });
  return due;
}

// The first in the line has waited longest.
void ConnectionLine::CloseOverdue(Owner& owner, MonotonicTime now) {
  while (!owner.waiting.empty() && now - owner.waiting.front().since >= wait_max_) {
    close(owner.waiting.front().connection.descriptor);
    owner.waiting.pop_front();
    --waiting_;
  }
}

}  // namespace kiln
