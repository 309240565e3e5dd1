// Closed-loop load on one method, in bytes that it does not read:
//   service_load calls --socket PATH --method NAME --request FILE [--connections N] [--outstanding N] …
//     --tls DIRECTORY: by mutual TLS as `load`; --socket is HOST:PORT then
//     --request-list FILE: of messages, each with its length before it (four bytes), in turn; --calls N: so
//     many; --retries N: a call that fails is tried again, at most so often, once its connection stands
//   service_load wait  --socket PATH --method NAME --request FILE … [--connections N] [--outstanding N]
// `calls`: each connection has `outstanding` calls at a time, the next as soon as one is answered. Prints one
// line of JSON: calls a second, bytes a second, quantiles of the time from a call's start to its status.
// `wait`: each call sends all its requests, closes its side and stays; prints "waiting" when each has had one
// message, and ends with standard input.
//
// Few threads, each with a completion queue and connections of its own, so that a reply wakes its own thread.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/service_tls.h"

namespace {

using Clock = std::chrono::steady_clock;
using grpc::ByteBuffer;

struct Options {
  std::string socket;
  std::string tls;
  std::string method;
  std::vector<std::string> request_files;
  std::string request_list;
  size_t calls = 0;  // of each thread, at most; 0: as time allows
  std::vector<ByteBuffer> requests;
  int connections = 1;
  int outstanding = 1;
  int threads = 1;
  bool stream = false;  // the method answers with several messages
  double seconds = 5;
  double warm_seconds = 0.3;
  size_t reply_bytes = 0;  // of each call; 0: any
  int retries = 0;
};

struct Tally {
  std::vector<float> microseconds;
  size_t bytes = 0;
  size_t failed = 0;
  size_t retried = 0;
  std::string failure;  // the first
};

class Connection {
 public:
  explicit Connection(const Options& options) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // one socket each
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = options.tls.empty()
                   ? grpc::CreateCustomChannel("unix:" + options.socket, grpc::InsecureChannelCredentials(),
                                               arguments)
                   : grpc::CreateCustomChannel(options.socket, kiln::bench::ClientTls(options.tls, "load"),
                                               arguments);
    stub_.emplace(channel_);
  }
  bool Connect() {
    return channel_->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
  grpc::GenericStub& stub() { return *stub_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<grpc::GenericStub> stub_;
};

// A step that the completion queue ends.
class Step {
 public:
  virtual ~Step() = default;
  virtual void Done(bool ok) = 0;
};

// The window that counts, and where a call's outcome goes.
struct Round {
  Clock::time_point counted_from;
  Clock::time_point until;
  const Options* options;
  grpc::CompletionQueue queue;
  int running = 0;
  size_t started = 0;
  Tally tally;

  bool GoesOn() const { return (options->calls == 0 || started < options->calls) && Clock::now() < until; }
  const ByteBuffer& NextRequest() { return options->requests[started++ % options->requests.size()]; }

  void Ended(Clock::time_point began, const grpc::Status& status, size_t bytes) {
    const Clock::time_point now = Clock::now();
    const bool short_of = options->reply_bytes != 0 && bytes != options->reply_bytes;
    if (!status.ok() || short_of) {
      if (tally.failed++ == 0) {
        tally.failure =
            status.ok() ? "a reply of " + std::to_string(bytes) + " bytes" : status.error_message();
      }
    } else if (began >= counted_from && now <= until) {
      tally.microseconds.push_back(std::chrono::duration<float, std::micro>(now - began).count());
      tally.bytes += bytes;
    }
  }
};

// One of a connection's places: a call, and after it the next.
class UnaryPlace : public Step {
 public:
  UnaryPlace(Connection* connection, Round* round) : connection_(connection), round_(round) { Start(); }

  void Done(bool) override {
    if (!status_.ok() && attempts_ <= round_->options->retries) {
      ++round_->tally.retried;
      return Try();
    }
    round_->Ended(began_, status_, reply_.Valid() ? reply_.Length() : 0);
    if (round_->GoesOn()) return Start();
    --round_->running;
  }

 private:
  void Start() {
    request_ = &round_->NextRequest();
    attempts_ = 0;
    began_ = Clock::now();
    Try();
  }
  void Try() {
    // Before its context: it lies in the call's own memory, which goes with that.
    reader_ = nullptr;
    context_.emplace();
    context_->set_wait_for_ready(++attempts_ > 1);
    reply_.Clear();
    reader_ =
        connection_->stub().PrepareUnaryCall(&*context_, round_->options->method, *request_, &round_->queue);
    reader_->StartCall();
    reader_->Finish(&reply_, &status_, this);
  }

  Connection* const connection_;
  Round* const round_;
  Clock::time_point began_;
  const ByteBuffer* request_ = nullptr;
  int attempts_ = 0;
  std::optional<grpc::ClientContext> context_;
  ByteBuffer reply_;
  grpc::Status status_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<ByteBuffer>> reader_;
};

class StreamPlace : public Step {
 public:
  StreamPlace(Connection* connection, Round* round) : connection_(connection), round_(round) { Start(); }

  void Done(bool ok) override {
    switch (state_) {
      case State::kStarting:
        state_ = State::kWriting;
        stream_->WriteLast(round_->NextRequest(), grpc::WriteOptions(), this);
        return;
      case State::kWriting: state_ = State::kReading; return Read();
      case State::kReading:
        if (ok) {
          bytes_ += message_.Length();
          return Read();
        }
        state_ = State::kEnding;
        stream_->Finish(&status_, this);
        return;
      case State::kEnding:
        round_->Ended(began_, status_, bytes_);
        if (round_->GoesOn()) return Start();
        --round_->running;
        return;
    }
  }

 private:
  enum class State { kStarting, kWriting, kReading, kEnding };

  void Start() {
    // Before its context: it lies in the call's own memory, which goes with that.
    stream_ = nullptr;
    context_.emplace();
    bytes_ = 0;
    began_ = Clock::now();
    state_ = State::kStarting;
    stream_ = connection_->stub().PrepareCall(&*context_, round_->options->method, &round_->queue);
    stream_->StartCall(this);
  }
  void Read() {
    message_.Clear();
    stream_->Read(&message_, this);
  }

  Connection* const connection_;
  Round* const round_;
  Clock::time_point began_;
  State state_ = State::kStarting;
  std::optional<grpc::ClientContext> context_;
  ByteBuffer message_;
  size_t bytes_ = 0;
  grpc::Status status_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

void RunThread(const std::vector<Connection*>& connections, Round* round) {
  std::vector<std::unique_ptr<Step>> places;
  for (int k = 0; k < round->options->outstanding; ++k) {
    for (Connection* connection : connections) {
      ++round->running;
      if (round->options->stream) {
        places.push_back(std::make_unique<StreamPlace>(connection, round));
      } else {
        places.push_back(std::make_unique<UnaryPlace>(connection, round));
      }
    }
  }
  void* tag = nullptr;
  bool ok = false;
  while (round->running > 0 && round->queue.Next(&tag, &ok)) static_cast<Step*>(tag)->Done(ok);
  round->queue.Shutdown();
  while (round->queue.Next(&tag, &ok)) {
  }
}

double Quantile(const std::vector<float>& sorted, double part) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(part * static_cast<double>(sorted.size())))];
}

int PrintTally(const std::vector<std::unique_ptr<Round>>& rounds, double seconds) {
  Tally all;
  for (const std::unique_ptr<Round>& round : rounds) {
    const Tally& tally = round->tally;
    all.microseconds.insert(all.microseconds.end(), tally.microseconds.begin(), tally.microseconds.end());
    all.bytes += tally.bytes;
    all.failed += tally.failed;
    all.retried += tally.retried;
    if (all.failure.empty()) all.failure = tally.failure;
  }
  std::sort(all.microseconds.begin(), all.microseconds.end());
  printf(
      "{\"calls\": %zu, \"rate\": %.1f, \"bytes_rate\": %.0f, \"p50\": %.1f, \"p99\": %.1f, \"failed\": "
      "%zu, \"retried\": %zu}\n",
      all.microseconds.size(), static_cast<double>(all.microseconds.size()) / seconds,
      static_cast<double>(all.bytes) / seconds, Quantile(all.microseconds, 0.5),
      Quantile(all.microseconds, 0.99), all.failed, all.retried);
  if (all.failed != 0) fprintf(stderr, "service_load: %zu failed: %s\n", all.failed, all.failure.c_str());
  return all.failed != 0 || all.microseconds.empty() ? 1 : 0;
}

int RunCalls(const Options& options, std::vector<Connection>& connections) {
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const int count = std::min(options.threads, options.connections);
  std::vector<std::unique_ptr<Round>> rounds;
  std::vector<std::thread> threads;
  const Clock::time_point start = Clock::now();
  for (int t = 0; t < count; ++t) {
    rounds.push_back(std::make_unique<Round>());
    Round* round = rounds.back().get();
    round->options = &options;
    round->counted_from = start + duration(options.warm_seconds);
    round->until = round->counted_from + duration(options.seconds);
    std::vector<Connection*> own;
    for (size_t c = t; c < connections.size(); c += count) own.push_back(&connections[c]);
    threads.emplace_back([own, round] { RunThread(own, round); });
  }
  for (std::thread& thread : threads) thread.join();
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  return PrintTally(rounds, options.calls == 0 ? options.seconds : took);
}

// A call that sends what it has and stays.
class Waiter : public Step {
 public:
  Waiter(Connection* connection, const Options* options, grpc::CompletionQueue* queue, int* answered)
      : options_(options), answered_(answered) {
    stream_ = connection->stub().PrepareCall(&context_, options->method, queue);
    stream_->StartCall(this);
  }

  void Done(bool ok) override {
    if (!ok) ended_ = true;
    if (ended_) return;
    if (sent_ < options_->requests.size()) return stream_->Write(options_->requests[sent_++], this);
    if (!closed_) {
      closed_ = true;
      return stream_->WritesDone(this);
    }
    if (read_) ++*answered_;
    if (read_) return;
    read_ = true;
    stream_->Read(&message_, this);
  }

  bool ended() const { return ended_; }
  void Cancel() { context_.TryCancel(); }

 private:
  const Options* const options_;
  int* const answered_;
  grpc::ClientContext context_;
  ByteBuffer message_;
  size_t sent_ = 0;
  bool closed_ = false, read_ = false, ended_ = false;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

int RunWait(const Options& options, std::vector<Connection>& connections) {
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Waiter>> waiters;
  int answered = 0;
  for (int k = 0; k < options.outstanding; ++k) {
    for (Connection& connection : connections) {
      waiters.push_back(std::make_unique<Waiter>(&connection, &options, &queue, &answered));
    }
  }
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
  void* tag = nullptr;
  bool ok = false;
  while (answered < static_cast<int>(waiters.size()) &&
         queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT) {
    static_cast<Waiter*>(tag)->Done(ok);
    if (static_cast<Waiter*>(tag)->ended()) break;
  }
  const bool all = answered == static_cast<int>(waiters.size());
  if (!all) fprintf(stderr, "service_load: %d of %zu wait\n", answered, waiters.size());
  printf("%s\n", all ? "waiting" : "failed");
  fflush(stdout);
  char byte = 0;
  while (all && read(STDIN_FILENO, &byte, 1) > 0) {
  }
  for (const std::unique_ptr<Waiter>& waiter : waiters) waiter->Cancel();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return all ? 0 : 1;
}

bool ReadFile(const std::string& path, std::string* bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fprintf(stderr, "service_load: cannot read %s\n", path.c_str());
    return false;
  }
  std::ostringstream text;
  text << file.rdbuf();
  *bytes = text.str();
  return true;
}

bool ReadRequests(Options* options) {
  const auto add = [options](const std::string& bytes) {
    const grpc::Slice slice(bytes);
    options->requests.emplace_back(&slice, 1);
  };
  std::string bytes;
  for (const std::string& path : options->request_files) {
    if (!ReadFile(path, &bytes)) return false;
    add(bytes);
  }
  if (options->request_list.empty()) return true;
  if (!ReadFile(options->request_list, &bytes)) return false;
  for (size_t at = 0; at + sizeof(uint32_t) <= bytes.size();) {
    uint32_t size = 0;
    memcpy(&size, bytes.data() + at, sizeof(size));
    add(bytes.substr(at + sizeof(size), size));
    at += sizeof(size) + size;
  }
  return true;
}

void AddOptions(CLI::App* command, Options* options) {
  command->add_option("--socket", options->socket, "Unix socket, or HOST:PORT with --tls")->required();
  command->add_option("--tls", options->tls, "Directory of load.crt, load.key and ca.crt");
  command->add_option("--method", options->method, "/package.Service/Method")->required();
  command->add_option("--request", options->request_files, "File with a message's bytes");
  command->add_option("--connections", options->connections)->check(CLI::Range(1, 100'000));
  command->add_option("--outstanding", options->outstanding, "Calls at a time on each connection")
      ->check(CLI::Range(1, 1000));
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Closed-loop load on a gRPC method.");
  app.require_subcommand(1);
  CLI::App* calls = app.add_subcommand("calls", "One call after the other");
  AddOptions(calls, &options);
  calls->add_option("--threads", options.threads, "Each has connections of its own")
      ->check(CLI::Range(1, 64));
  calls->add_option("--request-list", options.request_list, "File of messages, in turn");
  calls->add_option("--calls", options.calls, "At most so many a thread");
  calls->add_flag("--stream", options.stream, "The method answers with several messages");
  calls->add_option("--seconds", options.seconds, "That count");
  calls->add_option("--warm-seconds", options.warm_seconds, "Before them");
  calls->add_option("--retries", options.retries, "Of a call; not with --stream");
  calls->add_option("--reply-bytes", options.reply_bytes, "Another number of bytes is a failure");
  CLI::App* wait = app.add_subcommand("wait", "Calls that stay");
  AddOptions(wait, &options);
  CLI11_PARSE(app, argc, argv);
  if (!ReadRequests(&options)) return 1;
  if (options.requests.empty()) {
    fprintf(stderr, "service_load: no message to send; name one by --request or --request-list\n");
    return 1;
  }
  std::vector<Connection> connections;
  connections.reserve(options.connections);
  for (int c = 0; c < options.connections; ++c) connections.emplace_back(options);
  for (Connection& connection : connections) {
    if (connection.Connect()) continue;
    fprintf(stderr, "service_load: %s does not answer\n", options.socket.c_str());
    return 1;
  }
  return wait->parsed() ? RunWait(options, connections) : RunCalls(options, connections);
}

}  // namespace

int main(int argc, char** argv) { return Main(argc, argv); }
