// kilnd's tenants by the users that the kernel names. Needs root, to be other users; skips itself otherwise.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/raw_http2.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

// `limits`: further fields of `listen`; `of_red`: of that tenant.
std::string ListenTo(const std::string& limits = "", const std::string& of_red = "") {
  return absl::StrCat("listen {", limits, R"(
  tenants { name: "own" uids: 0 uids: 1004 }
  tenants { name: "red" uids: 1001 uids: 1002 )",
                      of_red, R"( }
  tenants { name: "blue" uids: 1003 }
})");
}

class Tenants : public testing::Test {
 protected:
  Tenants() {
    if (geteuid() == 0) StartDaemon(ListenTo());
  }
  void StartDaemon(const std::string& config) {
    daemon_ = nullptr;
    daemon_ = std::make_unique<TestDaemon>(config);
    for (const std::string& directory : {daemon_->directory(), daemon_->directory() + "/run"}) {
      EXPECT_EQ(chmod(directory.c_str(), 0755), 0);
    }
  }
  void SetUp() override {
    if (daemon_ == nullptr) GTEST_SKIP() << "only root can be other users";
  }

  // A connection made by that user. The kernel takes the name at connect(2), of the very thread: the system
  // call itself changes no other's.
  int ConnectAs(uid_t uid) {
    int descriptor = -1;
    std::thread other([&] {
      if (syscall(SYS_setresuid, -1, uid, -1) != 0) return;
      descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      strncpy(address.sun_path, daemon_->socket().c_str(), sizeof(address.sun_path) - 1);
      EXPECT_EQ(connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
          << strerror(errno);
    });
    other.join();
    return descriptor;
  }
  std::shared_ptr<grpc::Channel> ChannelOf(uid_t uid) {
    return grpc::CreateInsecureChannelFromFd("peer", ConnectAs(uid));
  }

  // How many of a user's new connections stay, where each says what HTTP/2 begins with.
  int Staying(uid_t uid, int count) {
    const std::string hello = Http2Hello();
    for (int i = 0; i < count; ++i) {
      descriptors_.push_back(ConnectAs(uid));
      send(descriptors_.back(), hello.data(), hello.size(), MSG_NOSIGNAL);
    }
    absl::SleepFor(absl::Milliseconds(500));
    int open = 0;
    for (auto each = descriptors_.end() - count; each != descriptors_.end(); ++each) {
      pollfd wait = {*each, POLLRDHUP, 0};
      open += poll(&wait, 1, 0) == 0;
    }
    return open;
  }
  void TearDown() override {
    for (const int descriptor : descriptors_) close(descriptor);
  }

  grpc::Status Compile(uid_t uid, const std::string& script, const std::string& asked, bool* compiled) {
    const auto stub = v1::Compiler::NewStub(ChannelOf(uid));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    auto stream = stub->Compile(&context);
    Send(asked, script, stream.get());
    v1::CompileEvent event;
    while (stream->Read(&event)) *compiled = *compiled || event.has_queued();
    return stream->Finish();
  }

  std::unique_ptr<TestDaemon> daemon_;
  std::vector<int> descriptors_;
};

TEST_F(Tenants, AreTheUsersThatTheKernelNames) {
  bool compiled = false;
  ASSERT_TRUE(Compile(1001, "name mine", "whatever", &compiled).ok());
  EXPECT_TRUE(compiled);
  // Another user of the same tenant, who asks for another namespace, gets the same entry.
  compiled = false;
  ASSERT_TRUE(Compile(1002, "name mine", "blue", &compiled).ok());
  EXPECT_FALSE(compiled);
  // Another tenant gets his own, though he asks for the first one's.
  compiled = false;
  ASSERT_TRUE(Compile(1003, "name mine", "red", &compiled).ok());
  EXPECT_TRUE(compiled);
}

TEST_F(Tenants, AreToldWithUsersQuotasAndConnections) {
  StartDaemon(ListenTo("", "compile_seconds_per_hour: 60"));
  bool compiled = false;
  ASSERT_TRUE(Compile(1001, "sleep_ms 300\nname mine", "whatever", &compiled).ok());
  descriptors_.push_back(ConnectAs(1002));
  std::map<std::string, v1::TenantInfo> tenants;
  // Compile's own connection may take a moment to go.
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::TenantsReply reply;
    EXPECT_TRUE(daemon_->admin().Tenants(&context, v1::TenantsRequest(), &reply).ok());
    for (const v1::TenantInfo& tenant : reply.tenants()) tenants[tenant.name()] = tenant;
    return tenants["red"].connections() == 1 && reply.connections() == 2;  // and this one
  }));
  ASSERT_EQ(tenants.size(), 3u);
  const v1::TenantInfo &red = tenants["red"], &blue = tenants["blue"];
  EXPECT_EQ(std::vector<uint32_t>(red.uids().begin(), red.uids().end()), (std::vector<uint32_t>{1001, 1002}));
  EXPECT_TRUE(red.configured());
  EXPECT_EQ(red.compile_seconds_per_hour(), 60u);
  EXPECT_GE(red.compile_seconds_last_hour(), 0.3);
  EXPECT_EQ(red.compiles(), 1u);
  EXPECT_EQ(blue.compile_seconds_per_hour() + blue.connections() + blue.compiles(), 0u);
  EXPECT_EQ(blue.compile_seconds_last_hour(), 0);
}

TEST_F(Tenants, WhoIsNoneIsNotServed) {
  for (const uid_t uid : {uid_t{4711}, uid_t{65534}}) {
    bool compiled = false;
    EXPECT_EQ(Compile(uid, "name none", "red", &compiled).error_code(), grpc::UNAVAILABLE) << uid;
    EXPECT_FALSE(compiled);
  }
}

TEST_F(Tenants, NoneTakesTheOthersConnections) {
  StartDaemon(ListenTo("connections_max: 8 tenant_connections_max: 5"));
  EXPECT_EQ(Staying(1001, 4) + Staying(1002, 4), 5);
  bool compiled = false;
  EXPECT_TRUE(Compile(1003, "name mine", "blue", &compiled).ok());
}

// The control: one who may take them all does. Those of the daemon's own user are beside.
TEST_F(Tenants, WithoutALimitOneTakesAllConnections) {
  StartDaemon(ListenTo("connections_max: 8 tenant_connections_max: 8"));
  EXPECT_EQ(Staying(1001, 12), 8);
  bool compiled = false;
  EXPECT_EQ(Compile(1003, "name mine", "blue", &compiled).error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(Compile(0, "name mine", "own", &compiled).ok());
}

// The control is the daemon without the quota.
TEST_F(Tenants, WhoHasUsedItsQuotaIsServedHitsAlone) {
  for (const bool bounded : {true, false}) {
    StartDaemon(ListenTo("", bounded ? "compile_seconds_per_hour: 1" : ""));
    const std::string long_one = "sleep_ms 1100\nname long";
    bool compiled = false;
    EXPECT_TRUE(Compile(1001, long_one, "red", &compiled).ok());
    EXPECT_TRUE(compiled);
    compiled = false;
    const grpc::Status more = Compile(1002, "name more", "red", &compiled);
    EXPECT_EQ(more.error_code(), bounded ? grpc::RESOURCE_EXHAUSTED : grpc::OK) << more.error_message();
    EXPECT_EQ(compiled, !bounded);
    if (bounded) {
      EXPECT_NE(more.error_message().find("compile_seconds_per_hour (1); try again in 36"), std::string::npos)
          << more.error_message();
    }
    compiled = false;
    EXPECT_TRUE(Compile(1002, long_one, "red", &compiled).ok());
    EXPECT_FALSE(compiled) << "a hit";
    EXPECT_TRUE(Compile(1003, "name more", "blue", &compiled).ok());
    EXPECT_TRUE(compiled);
  }
}

// Whichever of its programs: nobody else, not even of its tenant.
TEST_F(Tenants, AUserWhoResetsCallsByTheThousandIsKeptAway) {
  const auto attacker = RawConnection::Of(ConnectAs(1001));
  fcntl(attacker->descriptor(), F_SETFL, 0);
  attacker->Send(Http2Hello());
  EXPECT_FALSE(SendResets(*attacker, 1, "/kiln.v1.Compiler/Compile", 40'000));
  EXPECT_EQ(Staying(1001, 3), 0);
  for (const uid_t other : {1002, 1003, 1004}) EXPECT_EQ(Staying(other, 3), 3) << other;
}

TEST_F(Tenants, KilnctlIsAnsweredToTheDaemonsOwnUserAndToAdministrators) {
  for (const bool admins : {false, true}) {
    if (admins) StartDaemon(ListenTo("", "roles: ROLE_ADMIN"));
    const grpc::StatusCode of_red = admins ? grpc::OK : grpc::PERMISSION_DENIED;
    // User 1004 is of the same tenant as the daemon's own.
    for (const auto& [uid, code] :
         {std::pair{uid_t{1004}, grpc::PERMISSION_DENIED}, std::pair{uid_t{0}, grpc::OK},
          std::pair{uid_t{1004}, grpc::PERMISSION_DENIED}, std::pair{uid_t{1001}, of_red}}) {
      const auto admin = v1::Admin::NewStub(ChannelOf(uid));
      grpc::ClientContext context;
      v1::StatsReply reply;
      const grpc::Status status = admin->Stats(&context, {}, &reply);
      EXPECT_EQ(status.error_code(), code) << uid << ": " << status.error_message();
      const std::string refusal = absl::StrCat("Admin.Stats needs role admin, which tenant \"",
                                               uid == 1004 ? "own" : "red", "\" lacks");
      EXPECT_EQ(status.error_message().find(refusal) == 0, code != grpc::OK) << status.error_message();
    }
  }
}

TEST_F(Tenants, HelloTellsTheTenant) {
  for (const auto& [uid, name] : {std::pair{uid_t{1002}, "red"}, std::pair{uid_t{1003}, "blue"}}) {
    grpc::ClientContext context;
    v1::HelloRequest request;
    request.set_protocol_min(1);
    request.set_protocol_max(1);
    v1::HelloReply reply;
    EXPECT_TRUE(v1::Compiler::NewStub(ChannelOf(uid))->Hello(&context, request, &reply).ok());
    EXPECT_EQ(reply.tenant(), name);
  }
}

TEST_F(Tenants, WhoMayOnlyReadHasNothingCompiled) {
  StartDaemon(ListenTo("", "roles: ROLE_READ"));
  bool compiled = false;
  const grpc::Status status = Compile(1001, "name mine", "red", &compiled);
  EXPECT_EQ(status.error_code(), grpc::PERMISSION_DENIED);
  EXPECT_NE(status.error_message().find("Compiler.Compile needs role compile, which tenant \"red\" lacks"),
            std::string::npos)
      << status.error_message();
  EXPECT_FALSE(compiled);
  EXPECT_TRUE(Compile(1003, "name mine", "blue", &compiled).ok()) << "the control: another tenant";
}

TEST_F(Tenants, TheOwnUserAdministersThoughItIsNoTenant) {
  StartDaemon("listen { tenants { name: \"red\" uids: 1001 } }");
  EXPECT_GE(daemon_->Stats().lookups(), 0);
  bool compiled = false;
  EXPECT_EQ(Compile(0, "name mine", "red", &compiled).error_code(), grpc::PERMISSION_DENIED);
  EXPECT_TRUE(Compile(1001, "name mine", "red", &compiled).ok());
}

}  // namespace
}  // namespace kiln
