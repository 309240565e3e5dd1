// libkiln's parts that need no daemon: the breaker, the object cache, the embedded daemon's directories.
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/src/daemon.h"
#include "client/src/object_cache.h"
#include "compiler/support/breaker.h"
#include "compiler/support/monotonic_time.h"
#include "gtest/gtest.h"
#include "kiln/run_count.h"

namespace kiln {
namespace {

TEST(BreakerTest, OpensAfterFailuresAndClosesAfterSuccess) {
  Breaker breaker;
  const MonotonicTime now = MonotonicNow();
  EXPECT_TRUE(breaker.Allows(now));
  breaker.Failed(now);
  EXPECT_TRUE(breaker.Allows(now));  // one failure is not an outage
  breaker.Failed(now);
  EXPECT_FALSE(breaker.Allows(now + std::chrono::seconds(4)));
  EXPECT_TRUE(breaker.Allows(now + std::chrono::seconds(6)));
  // The pause doubles, once, however many fail together.
  for (int i = 0; i < 8; ++i) breaker.Failed(now + std::chrono::seconds(6));
  EXPECT_FALSE(breaker.Allows(now + std::chrono::seconds(15)));
  EXPECT_TRUE(breaker.Allows(now + std::chrono::seconds(17)));
  breaker.Succeeded();
  EXPECT_TRUE(breaker.Allows(now + std::chrono::seconds(15)));
}

TEST(RunCountTest, StartsAnewWhenItIsTakenAndInAChild) {
  TakeRuns();
  for (int i = 0; i < 3; ++i) CountRun();
  const pid_t child = fork();
  if (child == 0) {
    CountRun();
    _exit(static_cast<int>(TakeRuns()));
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(WEXITSTATUS(ended), 1) << "its own alone";
  EXPECT_EQ(TakeRuns(), 3);
  EXPECT_EQ(TakeRuns(), 0);
}

TEST(ObjectCacheTest, KeepsTheNewestWithinItsBytes) {
  ObjectCache cache(10);
  for (const char* digest : {"a", "b", "c"}) {
    cache.Insert(digest, std::make_shared<const std::string>(4, digest[0]));
  }
  EXPECT_EQ(cache.Find("a"), nullptr);
  ASSERT_NE(cache.Find("b"), nullptr);
  EXPECT_EQ(*cache.Find("c"), "cccc");
  cache.Insert("d", std::make_shared<const std::string>(100, 'd'));  // larger than the whole: kept alone
  EXPECT_NE(cache.Find("d"), nullptr);
  EXPECT_EQ(cache.Find("c"), nullptr);
}

TEST(ConnectionTest, AnotherHostIsReachedByTlsAlone) {
  const struct {
    const char* address;
    std::string authority, certificate, key;
    const char* says;  // empty: it is fine
  } cases[] = {
      {"unix:/run/kilnd.sock", "", "", "", ""},
      {"unix:/run/kilnd.sock", "a", "", "", ""},
      {"127.0.0.1:7711", "", "", "", ""},
      {"localhost:7711", "", "", "", ""},
      {"[::1]:7711", "", "", "", ""},
      {"farm.example:7711", "a", "b", "c", ""},
      {"127.0.0.1:7711", "a", "b", "", "not set: KILN_TLS_KEY"},
      {"farm.example:7711", "", "b", "", "not set: KILN_TLS_CA, KILN_TLS_KEY"},
      {"farm.example:7711", "", "", "", "farm.example:7711 is another host's"},
      {"10.0.0.7:7711", "", "", "", "set KILN_TLS_CA, KILN_TLS_CERT and KILN_TLS_KEY"},
      {"localhost.example:7711", "", "", "", "is another host's"},
      {"127.0.0.1.example:7711", "", "", "", "is another host's"},
  };
  for (const auto& each : cases) {
    ClientOptions options;
    options.address = each.address;
    options.tls.authority = each.authority;
    options.tls.certificate = each.certificate;
    options.tls.key = each.key;
    const absl::Status status = CheckConnection(options);
    EXPECT_EQ(status.code(), *each.says == 0 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument)
        << each.address;
    EXPECT_TRUE(absl::StrContains(status.message(), each.says)) << status;
  }
}

TEST(ConnectionTest, AnUpstreamIsTheEmbeddedDaemonsAndItsFilesAreGood) {
  ClientOptions options;
  options.upstream = "unix:/run/kilnd.sock";
  EXPECT_TRUE(CheckConnection(options).ok());
  options.address = "unix:/run/other.sock";
  EXPECT_TRUE(absl::StrContains(CheckConnection(options).message(), "set one of them"));
  options.address = "";
  for (const char* upstream : {"farm.example:7711", "localhost:7711"}) {
    options.upstream = upstream;
    EXPECT_TRUE(absl::StrContains(CheckConnection(options).message(),
                                  "set KILN_TLS_CA, KILN_TLS_CERT and KILN_TLS_KEY"))
        << CheckConnection(options);
  }
  options.tls.authority = options.tls.certificate = "/none/file";
  EXPECT_TRUE(absl::StrContains(CheckConnection(options).message(), "not set: KILN_TLS_KEY"));
  options.tls.key = "/none/file";
  const absl::Status unreadable = CheckConnection(options);
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(unreadable.message(), "KILN_TLS_")) << unreadable;
  EXPECT_TRUE(absl::StrContains(unreadable.message(), "/none/file")) << unreadable;
}

class DaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-client-test-XXXXXX";
    root_ = mkdtemp(name);
    unsetenv("XDG_RUNTIME_DIR");
    options_.daemon_binary = "/proc/self/exe";
    options_.runtime_dir = absl::StrCat(root_, "/run");
    options_.store_dir = absl::StrCat(root_, "/store");
  }
  void TearDown() override { EXPECT_EQ(system(absl::StrCat("rm -rf ", root_).c_str()), 0); }

  std::string root_;
  ClientOptions options_;
};

TEST_F(DaemonTest, TheSigningKeyIsBesideTheStore) {
  const auto mode = [](const std::string& path) {
    struct stat facts;
    return stat(path.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0;
  };
  const auto named = PlaceDaemon(options_);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(PlaceSigningKey(*named), options_.store_dir + ".keys/signing.pem");
  EXPECT_EQ(mode(options_.store_dir + ".keys"), 0700u);

  options_.store_dir = "";
  setenv("XDG_CACHE_HOME", root_.c_str(), /*overwrite=*/1);
  auto found = PlaceDaemon(options_);
  unsetenv("XDG_CACHE_HOME");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(PlaceSigningKey(*found), root_ + "/kiln/keys/signing.pem") << "every build's";

  // Where there is no place for it.
  found->keys_dir = "/proc/keys";
  EXPECT_EQ(PlaceSigningKey(*found), found->runtime_dir + "/signing.pem");
}

TEST_F(DaemonTest, NamesThePlaceAndMakesItPrivate) {
  auto place = PlaceDaemon(options_);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->socket, options_.runtime_dir + "/kilnd.sock");
  struct stat info;
  ASSERT_EQ(stat(place->runtime_dir.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(DaemonTest, GivesEachStoreADaemonOfItsOwn) {
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", root_.c_str(), 1), 0);
  options_.runtime_dir = "";
  const auto first = PlaceDaemon(options_), again = PlaceDaemon(options_);
  options_.store_dir = absl::StrCat(root_, "/other");
  const auto second = PlaceDaemon(options_);
  unsetenv("XDG_RUNTIME_DIR");
  ASSERT_TRUE(first.ok() && again.ok() && second.ok());
  EXPECT_EQ(first->socket, again->socket);
  EXPECT_NE(first->socket, second->socket);
}

// A daemon of another upstream, or of another tenant's there, would serve what is not its caller's.
TEST_F(DaemonTest, GivesEachUpstreamADaemonOfItsOwn) {
  options_.runtime_dir = options_.store_dir = "";
  setenv("XDG_CACHE_HOME", root_.c_str(), /*overwrite=*/1);
  std::set<std::string> sockets, stores;
  for (const char* upstream : {"", "farm.example:7711", "other.example:7711"}) {
    for (const char* certificate : {"/etc/kiln/a.crt", "/etc/kiln/b.crt"}) {
      options_.upstream = upstream;
      options_.tls.certificate = certificate;
      const auto place = PlaceDaemon(options_);
      ASSERT_TRUE(place.ok()) << place.status();
      sockets.insert(place->socket);
      stores.insert(place->store_dir);
    }
  }
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(sockets.size(), 5) << "without an upstream no certificate is asked for";
  EXPECT_EQ(stores.size(), 5);
}

TEST_F(DaemonTest, RefusesADirectoryThatOthersCanWrite) {
  ASSERT_EQ(mkdir(options_.runtime_dir.c_str(), 0700), 0);
  ASSERT_EQ(chmod(options_.runtime_dir.c_str(), 0777), 0);
  EXPECT_EQ(PlaceDaemon(options_).status().code(), absl::StatusCode::kFailedPrecondition);
}

// A socket's name has 107 characters at most, "/kilnd.sock" among them.
TEST_F(DaemonTest, RetreatsFromALongName) {
  std::set<std::string> sockets;
  for (size_t size : {66, 80, 95, 96, 97, 108, 200}) {
    for (const char filler : {'x', 'y'}) {
      options_.runtime_dir = absl::StrCat(root_, "/", std::string(size - root_.size() - 1, filler));
      const auto place = PlaceDaemon(options_), again = PlaceDaemon(options_);
      ASSERT_TRUE(place.ok() && again.ok()) << place.status();
      EXPECT_EQ(place->socket, again->socket);
      EXPECT_LT(place->socket.size(), sizeof(sockaddr_un::sun_path));
      EXPECT_EQ(place->runtime_dir == options_.runtime_dir, size <= 96) << size;
      EXPECT_TRUE(sockets.insert(place->socket).second) << place->socket;
      struct stat info;
      ASSERT_EQ(stat(place->runtime_dir.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0700u);
      if (size > 96) {
        EXPECT_EQ(rmdir(place->runtime_dir.c_str()), 0);
      }
    }
  }
}

TEST_F(DaemonTest, RetreatsFromALongPlaceOfTheSystem) {
  const std::string xdg = absl::StrCat(root_, "/", std::string(80, 'x'));
  ASSERT_EQ(mkdir(xdg.c_str(), 0700), 0);
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", xdg.c_str(), 1), 0);
  options_.runtime_dir = "";
  const auto place = PlaceDaemon(options_);
  unsetenv("XDG_RUNTIME_DIR");
  ASSERT_TRUE(place.ok()) << place.status();
  const auto without = PlaceDaemon(options_);  // where nothing is named
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(place->socket, without->socket);
  EXPECT_EQ(rmdir(place->runtime_dir.c_str()), 0);
}

// As an emptyDir of Kubernetes at /tmp: everybody may write it, and it is not sticky.
TEST_F(DaemonTest, RetreatsFromASharedDirectoryThatIsNotSticky) {
  SharedDirectories shared = {{}, {}};
  for (const char* name : {"/first", "/second", "/third"}) {
    shared.socket.push_back(absl::StrCat(root_, name));
    ASSERT_EQ(mkdir(shared.socket.back().c_str(), 0700), 0);
    ASSERT_EQ(chmod(shared.socket.back().c_str(), 0777), 0);
  }
  shared.store = {shared.socket[2], shared.socket[1]};
  ASSERT_EQ(setenv("XDG_CACHE_HOME", shared.socket[0].c_str(), 1), 0);
  options_.runtime_dir = options_.store_dir = "";
  const auto refused = PlaceDaemon(options_, shared);
  ASSERT_EQ(chmod(shared.socket[1].c_str(), 01777), 0);
  const auto place = PlaceDaemon(options_, shared), again = PlaceDaemon(options_, shared);
  // The control: what is named is refused all the same.
  options_.runtime_dir = absl::StrCat(shared.socket[0], "/run");
  const auto named = PlaceDaemon(options_, shared);
  options_.runtime_dir = absl::StrCat(root_, "/run");
  shared.store = {shared.socket[0], shared.socket[2]};
  const auto no_store = PlaceDaemon(options_, shared);
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.status().message(), shared.socket[0])) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "KILN_RUNTIME_DIR")) << refused.status();
  ASSERT_TRUE(place.ok() && again.ok()) << place.status();
  EXPECT_TRUE(absl::StartsWith(place->socket, shared.socket[1])) << place->socket;
  EXPECT_TRUE(absl::StartsWith(place->store_dir, shared.socket[1])) << place->store_dir;
  EXPECT_EQ(place->socket, again->socket);
  EXPECT_EQ(named.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(no_store.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(no_store.status().message(), "KILN_STORE")) << no_store.status();
}

TEST_F(DaemonTest, WantsAProgramWithABuildId) {
  options_.daemon_binary = "/etc/passwd";
  EXPECT_FALSE(PlaceDaemon(options_).ok());
  options_.daemon_binary = "";
  EXPECT_EQ(PlaceDaemon(options_).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DaemonTest, ProbesTheSocket) {
  auto place = PlaceDaemon(options_);
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(*ProbeSocket(place->socket, MonotonicNow()));
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  place->socket.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_FALSE(*ProbeSocket(place->socket, MonotonicNow()));  // bound, but nobody listens
  ASSERT_EQ(listen(listener, 4), 0);
  EXPECT_TRUE(*ProbeSocket(place->socket, MonotonicNow()));
  // Who is frozen, or has more callers than he takes, keeps nobody waiting beyond his deadline.
  absl::StatusOr<bool> full = true;
  for (int calls = 0; full.ok() && calls < 100; ++calls) full = ProbeSocket(place->socket, MonotonicNow());
  EXPECT_TRUE(absl::IsUnavailable(full.status())) << full.status();
  std::thread takes([&] {
    absl::SleepFor(absl::Milliseconds(50));
    close(accept(listener, nullptr, nullptr));
  });
  EXPECT_TRUE(*ProbeSocket(place->socket, MonotonicAfter(absl::Seconds(20))));
  takes.join();
  close(listener);
  EXPECT_FALSE(*ProbeSocket(place->socket, MonotonicNow()));
}

TEST_F(DaemonTest, GivesUpAtTheDeadline) {
  auto place = PlaceDaemon(options_);
  ASSERT_TRUE(place.ok());
  const absl::Time start = absl::Now();
  EXPECT_EQ(EnsureDaemon("/bin/true", *place, MonotonicAfter(absl::Milliseconds(300))).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
}

}  // namespace
}  // namespace kiln
