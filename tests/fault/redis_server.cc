#include "tests/fault/redis_server.h"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr char kProgram[] = "/usr/bin/redis-server";

std::string Printed(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_NIL: return "(nil)";
    case REDIS_REPLY_INTEGER: return absl::StrCat(reply.integer);
    case REDIS_REPLY_ERROR: return absl::StrCat("(error) ", reply.str);
    case REDIS_REPLY_ARRAY: return absl::StrCat("(array of ", reply.elements, ")");
    default: return std::string(reply.str, reply.len);
  }
}

}  // namespace

bool RedisServer::IsThere() { return access(kProgram, X_OK) == 0; }

RedisServer::RedisServer(std::vector<std::string> flags, const std::string& file) : flags_(std::move(flags)) {
  signal(SIGPIPE, SIG_IGN);  // hiredis writes to who has closed
  char path[] = "/tmp/kiln-redis-XXXXXX";
  directory_ = mkdtemp(path);
  if (!file.empty()) {
    file_ = directory_ + "/redis.conf";
    std::ofstream(file_) << file;
  }
  Start();
}

RedisServer::~RedisServer() {
  Kill();
  std::filesystem::remove_all(directory_);
}

void RedisServer::Start() {
  std::vector<std::string> words = {kProgram};
  if (!file_.empty()) words.push_back(file_);
  const std::vector<std::string> common = {"--port", "0",        "--unixsocket", socket(),
                                           "--save", "",         "--appendonly", "no",
                                           "--dir",  directory_, "--logfile",    directory_ + "/log"};
  words.insert(words.end(), common.begin(), common.end());
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(argv[0], argv.data());
    _exit(127);
  }
  for (int tries = 0; tries < 1500; ++tries) {
    context_ = redisConnectUnix(socket().c_str());
    if (context_ != nullptr && context_->err == 0) return;
    redisFree(context_);
    context_ = nullptr;
    absl::SleepFor(absl::Milliseconds(20));
  }
  ADD_FAILURE() << "redis-server does not answer";
}

void RedisServer::Kill() {
  redisFree(context_);
  context_ = nullptr;
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int RedisServer::FreePort() {
  constexpr int kFirst = 20'000, kPorts = 12'000, kBus = 10'000;
  static std::minstd_rand random(static_cast<uint32_t>(getpid()));
  const auto is_free = [](int port) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool bound = bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(listener);
    return bound;
  };
  while (true) {
    const int port = kFirst + static_cast<int>(random() % kPorts);
    if (is_free(port) && is_free(port + kBus)) return port;
  }
}

void RedisServer::Pause() { kill(pid_, SIGSTOP); }
void RedisServer::Continue() { kill(pid_, SIGCONT); }

std::string RedisServer::Ask(const std::vector<std::string>& command) {
  std::vector<const char*> words;
  std::vector<size_t> sizes;
  for (const std::string& word : command) {
    words.push_back(word.data());
    sizes.push_back(word.size());
  }
  auto* reply = static_cast<redisReply*>(
      redisCommandArgv(context_, static_cast<int>(words.size()), words.data(), sizes.data()));
  if (reply == nullptr) {  // a master that became a replica closes its connections
    redisFree(context_);
    context_ = redisConnectUnix(socket().c_str());
    return absl::StrCat("(error) ", context_->errstr);
  }
  std::string printed = Printed(*reply);
  freeReplyObject(reply);
  return printed;
}

size_t RedisServer::Clients() {
  const std::string list = Ask({"CLIENT", "LIST"});
  return static_cast<size_t>(std::count(list.begin(), list.end(), '\n'));
}

std::vector<std::string> RedisServer::Keys(const std::string& pattern) {
  std::vector<std::string> keys;
  auto* reply = static_cast<redisReply*>(redisCommand(context_, "KEYS %s", pattern.c_str()));
  if (reply == nullptr) return keys;
  for (size_t i = 0; i < reply->elements; ++i) keys.push_back(Printed(*reply->element[i]));
  freeReplyObject(reply);
  return keys;
}

}  // namespace kiln
