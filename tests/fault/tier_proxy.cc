#include "tests/fault/tier_proxy.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <utility>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr int kTickMs = 20;  // how soon it is seen that the proxy ends
constexpr size_t kBufferBytes = 64u << 10;
constexpr int kAnswerMs = 1000;

std::string MakeDirectory() {
  char path[] = "/tmp/kiln-proxy-XXXXXX";
  return mkdtemp(path);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), std::min(path.size() + 1, sizeof(address.sun_path)));
  return address;
}

bool WriteAll(int socket, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t took = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (took < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(took));
  }
  return true;
}

// What has been read of one side and is to be written to the other.
struct Way {
  int from;
  int to;
  std::deque<std::pair<absl::Time, std::string>> late;

  // False at the end.
  bool Read(std::string* bytes) const {
    bytes->resize(kBufferBytes);
    const ssize_t size = recv(from, bytes->data(), bytes->size(), 0);
    bytes->resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    return size > 0;
  }
  bool WriteWhatIsDue() {
    while (!late.empty() && late.front().first <= absl::Now()) {
      if (!WriteAll(to, late.front().second)) return false;
      late.pop_front();
    }
    return true;
  }
  int MillisecondsLeft() const {
    if (late.empty()) return kTickMs;
    return static_cast<int>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(late.front().first - absl::Now()), 0, kTickMs));
  }
};

}  // namespace

TierProxy::TierProxy(std::string server_socket)
    : directory_(MakeDirectory()),
      socket_(directory_ + "/tier.sock"),
      server_socket_(std::move(server_socket)),
      listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_un address = AddressOf(socket_);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener_, 64), 0);
  accepting_ = std::thread([this] { Accept(); });
}

TierProxy::~TierProxy() {
  closing_ = true;
  accepting_.join();
  std::vector<std::thread> connections;
  {
    absl::MutexLock lock(&mutex_);
    connections.swap(connections_);
  }
  for (std::thread& connection : connections) connection.join();
  close(listener_);
  std::filesystem::remove_all(directory_);
}

void TierProxy::Arm(Point point, std::function<void()> act) {
  absl::MutexLock lock(&mutex_);
  point_ = std::move(point);
  act_ = std::move(act);
}

void TierProxy::Accept() {
  while (!closing_) {
    pollfd wait = {listener_, POLLIN, 0};
    if (poll(&wait, 1, kTickMs) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    absl::MutexLock lock(&mutex_);
    connections_.emplace_back([this, client] { Serve(client); });
  }
}

void TierProxy::Serve(int client) {
  const int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un address = AddressOf(server_socket_);
  Way up = {client, server, {}};
  Way down = {server, client, {}};
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  while (open && !closing_) {
    pollfd wait[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    poll(wait, 2, std::min(up.MillisecondsLeft(), down.MillisecondsLeft()));
    const absl::Duration delay = absl::Nanoseconds(delay_ns_.load());
    for (Way* way : {&up, &down}) {
      if (wait[way == &down].revents == 0) continue;
      std::string bytes;
      open = open && way->Read(&bytes);
      const size_t point = way == &up ? Find(bytes) : std::string::npos;
      if (point != std::string::npos) {
        WriteAll(server, absl::string_view(bytes).substr(0, point));
        Act(server);
        open = false;
      }
      way->late.emplace_back(absl::Now() + delay, std::move(bytes));
    }
    open = open && up.WriteWhatIsDue() && down.WriteWhatIsDue();
  }
  close(server);
  close(client);
}

size_t TierProxy::Find(absl::string_view bytes) {
  absl::MutexLock lock(&mutex_);
  if (act_ == nullptr) return std::string::npos;
  for (size_t at = bytes.find(point_.text); at != std::string::npos; at = bytes.find(point_.text, at + 1)) {
    if (--point_.number > 0) continue;
    if (point_.done) return bytes.size();
    // Of the command that it is in, which begins with how many words it has.
    const size_t begin = bytes.rfind("\r\n*", at);
    return begin == std::string::npos ? 0 : begin + 2;
  }
  return std::string::npos;
}

void TierProxy::Act(int server) {
  std::function<void()> act;
  bool done = false;
  {
    absl::MutexLock lock(&mutex_);
    std::swap(act, act_);
    done = point_.done;
  }
  pollfd answer = {server, POLLIN, 0};
  EXPECT_TRUE(!done || poll(&answer, 1, kAnswerMs) > 0) << "the server does not answer";
  act();
}

}  // namespace kiln
