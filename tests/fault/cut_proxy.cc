#include "tests/fault/cut_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr int kPauseMilliseconds = 20;
constexpr int kEndMilliseconds = 2'000;

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// As somebody does who is gone: what was not read yet is lost.
void Break(int socket) {
  const linger none = {1, 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  shutdown(socket, SHUT_RDWR);
}

// The other side has all of what was sent before, and then the end.
void EndAfterWhatWasSaid(int socket) {
  shutdown(socket, SHUT_WR);
  char block[4096];
  pollfd wait = {socket, POLLIN, 0};
  while (poll(&wait, 1, kEndMilliseconds) > 0 && recv(socket, block, sizeof(block), 0) > 0) {
  }
}

// How much was passed on; 0 at the end.
ssize_t Pass(int from, int to) {
  char block[16 << 10];
  const ssize_t got = recv(from, block, sizeof(block), 0);
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t more = send(to, block + sent, got - sent, MSG_NOSIGNAL);
    if (more <= 0) return 0;
    sent += more;
  }
  return got;
}

}  // namespace

CutProxy::CutProxy(const std::string& target) : target_port_(PortOf(target)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = Loopback(0);
  socklen_t size = sizeof(own);
  EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&own), size), 0);
  EXPECT_EQ(listen(listener_, 64), 0);
  EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&own), &size), 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(own.sin_port));
  accepting_ = std::thread([this] { Accept(); });
}

CutProxy::~CutProxy() {
  closing_ = true;
  Cut();
  accepting_.join();
  std::vector<std::thread> connections;
  {
    absl::MutexLock lock(&mutex_);
    connections.swap(connections_);
  }
  for (std::thread& connection : connections) connection.join();
  close(listener_);
}

size_t CutProxy::open() const {
  absl::MutexLock lock(&mutex_);
  return clients_.size();
}

void CutProxy::Cut() {
  absl::MutexLock lock(&mutex_);
  for (const int client : clients_) Break(client);
}

void CutProxy::Accept() {
  while (!closing_) {
    pollfd wait = {listener_, POLLIN, 0};
    if (poll(&wait, 1, kPauseMilliseconds) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    ++accepted_;
    if (refuses_) {
      Break(client);
      close(client);
      continue;
    }
    absl::MutexLock lock(&mutex_);
    clients_.insert(client);
    connections_.emplace_back([this, client] { Serve(client); });
  }
}

void CutProxy::Serve(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in target = Loopback(target_port_);
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0;
  int64_t said = 0;
  while (open && !closing_) {
    pollfd ends[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    if (poll(ends, 2, kPauseMilliseconds) < 0) break;
    if (ends[0].revents != 0) open = Pass(client, server) > 0;
    if (open && ends[1].revents != 0) {
      const ssize_t more = Pass(server, client);
      said += more;
      open = more > 0;
    }
    if (const int64_t limit = cut_after_; limit >= 0 && said >= limit) {
      open = false;
      EndAfterWhatWasSaid(client);
    }
  }
  // The daemon's side breaks as well.
  Break(server);
  close(server);
  absl::MutexLock lock(&mutex_);
  Break(client);
  clients_.erase(client);
  close(client);
}

}  // namespace kiln
