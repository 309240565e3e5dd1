// Sockets that kilnd listens on.
#include "server/listen/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

TEST(ListeningSocket, ANameOfWhichAnotherHasOneAddressIsRefused) {
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(stranger, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(stranger, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(stranger, 1), 0);
  ASSERT_EQ(getsockname(stranger, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const std::string name = absl::StrCat("localhost:", ntohs(address.sin_port));
  EXPECT_TRUE(absl::IsAlreadyExists(ListenOnTcp(name).status()));
  close(stranger);
  // The control: the same port, when it is free.
  absl::StatusOr<TcpSockets> sockets = ListenOnTcp(name);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  for (const int descriptor : sockets->descriptors) close(descriptor);
}

}  // namespace
}  // namespace kiln
