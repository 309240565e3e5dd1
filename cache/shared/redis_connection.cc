#include "cache/shared/redis_connection.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kBufferBytes = 64u << 10;

// What makes replies of what is read: hiredis' own functions, but for the limit.
redisReplyObjectFunctions* LimitedFunctions() {
  static const redisReplyObjectFunctions own = [] {
    redisReader* const reader = redisReaderCreate();
    const redisReplyObjectFunctions functions = *reader->fn;
    redisReaderFree(reader);
    return functions;
  }();
  static redisReplyObjectFunctions limited = [] {
    redisReplyObjectFunctions functions = own;
    functions.createArray = [](const redisReadTask* task, int elements) -> void* {
      return elements > kRedisElementsMax ? nullptr : own.createArray(task, elements);
    };
    return functions;
  }();
  return &limited;
}

absl::StatusOr<std::string> Format(absl::Span<const RedisCommand> commands) {
  std::string bytes;
  for (const RedisCommand& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> lengths;
    for (const std::string& word : command) {
      words.push_back(word.data());
      lengths.push_back(word.size());
    }
    char* formatted = nullptr;
    const int size =
        redisFormatCommandArgv(&formatted, static_cast<int>(words.size()), words.data(), lengths.data());
    if (size < 0) return absl::ResourceExhaustedError("no memory for a command");
    bytes.append(formatted, static_cast<size_t>(size));
    redisFreeCommand(formatted);
  }
  return bytes;
}

absl::Status Broke(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// Until one of them is ready.
absl::Status Await(absl::Span<pollfd> waits, MonotonicTime deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonotonicNow()).count();
    if (left <= 0) return absl::DeadlineExceededError("the server is slow");
    const int polled = poll(waits.data(), waits.size(), static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (polled < 0 && errno != EINTR) return Broke("poll");
    if (polled > 0) return absl::OkStatus();
  }
}

}  // namespace

void RedisDeleter::operator()(redisContext* context) const { redisFree(context); }
void RedisDeleter::operator()(redisReader* reader) const { redisReaderFree(reader); }
void RedisDeleter::operator()(redisReply* reply) const { freeReplyObject(reply); }

absl::Status RedisError(const redisReply& reply) {
  if (reply.type != REDIS_REPLY_ERROR) return absl::OkStatus();
  const absl::string_view text(reply.str, reply.len);
  const auto starts = [text](std::initializer_list<absl::string_view> codes) {
    for (const absl::string_view code : codes) {
      if (absl::StartsWith(text, code)) return true;
    }
    return false;
  };
  if (starts({"OOM"})) return absl::ResourceExhaustedError(text);
  if (starts({"NOAUTH", "WRONGPASS", "NOPERM"})) return absl::PermissionDeniedError(text);
  if (starts({"LOADING", "MASTERDOWN", "BUSY", "TRYAGAIN", "CLUSTERDOWN"}))
    return absl::UnavailableError(text);
  return absl::FailedPreconditionError(text);
}

bool IsReadOnly(const redisReply& reply) {
  return reply.type == REDIS_REPLY_ERROR &&
         absl::StartsWith(absl::string_view(reply.str, reply.len), "READONLY");
}

absl::string_view RedisString(const redisReply& reply) {
  return reply.type == REDIS_REPLY_STRING ? absl::string_view(reply.str, reply.len) : absl::string_view();
}

RedisConnection::~RedisConnection() = default;

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Connect(const RedisAddress& address,
                                                                          const RedisLogin& login,
                                                                          MonotonicTime deadline) {
  std::unique_ptr<RedisConnection> made(new RedisConnection());
  made->context_.reset(address.unix_path.empty() ? redisConnectNonBlock(address.host.c_str(), address.port)
                                                 : redisConnectUnixNonBlock(address.unix_path.c_str()));
  made->reader_.reset(redisReaderCreateWithFunctions(LimitedFunctions()));
  if (made->context_ == nullptr || made->reader_ == nullptr)
    return absl::ResourceExhaustedError("no memory for a connection");
  if (made->context_->err != 0) return absl::UnavailableError(made->context_->errstr);
  made->buffer_.resize(kBufferBytes);
  pollfd connects = {made->context_->fd, POLLOUT, 0};
  KILN_RETURN_IF_ERROR(Await(absl::MakeSpan(&connects, 1), deadline));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(made->context_->fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(absl::StrCat("connect: ", strerror(error)));
  // One question, so that who is there is known to answer.
  RedisCommand first = {"PING"};
  if (!login.password.empty() && login.user.empty()) first = {"AUTH", login.password};
  if (!login.password.empty() && !login.user.empty()) first = {"AUTH", login.user, login.password};
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies, made->Run({first}, deadline));
  const absl::Status answer = RedisError(*replies[0]);
  if (absl::IsFailedPrecondition(answer)) return absl::PermissionDeniedError(answer.message());
  KILN_RETURN_IF_ERROR(answer);
  return made;
}

absl::StatusOr<std::vector<RedisReplyPtr>> RedisConnection::Run(absl::Span<const RedisCommand> commands,
                                                                MonotonicTime deadline) {
  RedisExchange exchange = {this, commands, std::vector<RedisReplyPtr>()};
  RunTogether(absl::MakeSpan(&exchange, 1), deadline);
  return std::move(exchange.replies);
}

void RedisConnection::RunTogether(absl::Span<RedisExchange> exchanges, MonotonicTime deadline) {
  std::vector<Talk> talks(exchanges.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < exchanges.size(); ++i) {
    absl::StatusOr<std::string> out = Format(exchanges[i].commands);
    talks[i].status = out.status();
    if (out.ok()) talks[i].out = *std::move(out);
    talks[i].wanted = exchanges[i].commands.size();
    if (!talks[i].IsOver()) open.push_back(i);
  }
  while (!open.empty()) {
    std::vector<pollfd> waits;
    for (const size_t i : open) waits.push_back(exchanges[i].connection->WaitFor(talks[i]));
    const absl::Status waited = Await(absl::MakeSpan(waits), deadline);
    for (size_t k = 0; k < open.size(); ++k) {
      Talk& talk = talks[open[k]];
      talk.status = waited.ok() ? exchanges[open[k]].connection->Step(waits[k].revents, &talk) : waited;
    }
    std::erase_if(open, [&](size_t i) { return talks[i].IsOver(); });
  }
  for (size_t i = 0; i < exchanges.size(); ++i) {
    if (talks[i].status.ok()) {
      exchanges[i].replies = std::move(talks[i].replies);
    } else {
      exchanges[i].replies = talks[i].status;
    }
  }
}

// Both at once: a server that has said much takes no more until it is read.
pollfd RedisConnection::WaitFor(const Talk& talk) const {
  const bool sends = talk.sent < talk.out.size();
  return {context_->fd, static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), 0};
}

absl::Status RedisConnection::Step(short ready, Talk* talk) {
  if ((ready & POLLOUT) != 0) KILN_RETURN_IF_ERROR(Send(talk));
  if ((ready & ~POLLOUT) == 0) return absl::OkStatus();
  KILN_RETURN_IF_ERROR(Receive(talk));
  if (talk->received > kRedisReplyBytesMax)
    return absl::DataLossError("the server says more than was asked for");
  for (void* reply = nullptr;;) {
    if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK)
      return absl::DataLossError(absl::StrCat("no Redis protocol: ", reader_->errstr));
    if (reply == nullptr) return absl::OkStatus();
    talk->replies.emplace_back(static_cast<redisReply*>(reply));
  }
}

absl::Status RedisConnection::Send(Talk* talk) {
  const ssize_t took = send(context_->fd, talk->out.data() + talk->sent, talk->out.size() - talk->sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
  if (took < 0 && errno != EAGAIN && errno != EINTR) return Broke("send");
  if (took > 0) talk->sent += static_cast<size_t>(took);
  return absl::OkStatus();
}

absl::Status RedisConnection::Receive(Talk* talk) {
  const ssize_t took = recv(context_->fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (took == 0) return absl::UnavailableError("the server closed the connection");
  if (took < 0) return errno == EAGAIN || errno == EINTR ? absl::OkStatus() : Broke("receive");
  talk->received += static_cast<size_t>(took);
  if (redisReaderFeed(reader_.get(), buffer_.data(), static_cast<size_t>(took)) != REDIS_OK)
    return absl::DataLossError(absl::StrCat("no Redis protocol: ", reader_->errstr));
  return absl::OkStatus();
}

bool RedisConnection::IsQuiet() const {
  pollfd look = {context_->fd, POLLIN, 0};
  return poll(&look, 1, 0) == 0;
}

}  // namespace kiln
