// What gRPC costs by itself: a callback server with kilnd's limits of channels, that knows the methods' names
// and nothing else of kiln.
//   service_bare --socket PATH|--tls DIRECTORY --form unary|generic [--reply-bytes N] [--messages N]
// Lookup is answered by one prebuilt reply, FetchObjects by `messages` of them, and a Compile gets one as
// soon as it has sent something and then waits until its client goes. Serves until standard input ends. With
// --tls by mutual TLS on a port of the loopback, which it prints as "serves 127.0.0.1:PORT".
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "tests/bench/service_tls.h"

namespace kiln {
namespace {

using grpc::ByteBuffer;

struct Reply {
  ByteBuffer message;
  int messages = 1;
};

ByteBuffer OfBytes(size_t bytes) {
  const grpc::Slice slice(std::string(bytes, 'r'));
  return ByteBuffer(&slice, 1);
}

class Unary
    : public v1::Compiler::WithRawCallbackMethod_Lookup<v1::Compiler::WithRawCallbackMethod_FetchObjects<
          v1::Compiler::WithRawCallbackMethod_Compile<v1::Compiler::Service>>> {
 public:
  explicit Unary(const Reply* reply) : reply_(reply) {}

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* context, const ByteBuffer*,
                                   ByteBuffer* answer) override {
    *answer = reply_->message;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<ByteBuffer>* FetchObjects(grpc::CallbackServerContext*,
                                                     const ByteBuffer*) override {
    return new Stream(reply_);
  }

  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* Compile(grpc::CallbackServerContext*) override {
    return new Waiter(reply_);
  }

 private:
  class Stream : public grpc::ServerWriteReactor<ByteBuffer> {
   public:
    explicit Stream(const Reply* reply) : reply_(reply), left_(reply->messages) { Next(); }
    void OnWriteDone(bool ok) override { ok ? Next() : Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    void Next() {
      if (left_-- > 0) return StartWrite(&reply_->message);
      Finish(grpc::Status::OK);
    }
    const Reply* const reply_;
    int left_;
  };

  class Waiter : public grpc::ServerBidiReactor<ByteBuffer, ByteBuffer> {
   public:
    explicit Waiter(const Reply* reply) : reply_(reply) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      if (!answered_) StartWrite(&reply_->message);
      answered_ = true;
      request_.Clear();
      StartRead(&request_);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    const Reply* const reply_;
    ByteBuffer request_;
    bool answered_ = false;
  };

  const Reply* const reply_;
};

// Lookup alone: the other two are streams in both forms.
class Generic : public grpc::CallbackGenericService {
 public:
  explicit Generic(const Reply* reply) : reply_(reply) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new Call(reply_);
  }

 private:
  class Call : public grpc::ServerGenericBidiReactor {
   public:
    explicit Call(const Reply* reply) : reply_(reply) { StartRead(&request_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::CANCELLED);
      StartWriteAndFinish(&reply_->message, grpc::WriteOptions(), grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    const Reply* const reply_;
    ByteBuffer request_;
  };

  const Reply* const reply_;
};

// Those of server/listen/kiln_server.cc with kilnd's defaults: some of them add a filter to each call.
void SetLimits(grpc::ServerBuilder& builder, bool by_tls) {
  grpc::ResourceQuota quota("bare");
  builder.SetResourceQuota(quota.Resize(512u << 20));
  builder.SetMaxReceiveMessageSize(6 << 20);
  builder.SetMaxSendMessageSize(-1);
  const std::pair<const char*, int> limits[] = {
      {GRPC_ARG_MAX_METADATA_SIZE, 8 << 10},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, 100},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300'000},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, 3'600'000},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 1'800'000},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2},
  };
  for (const auto& [name, value] : limits) builder.AddChannelArgument(name, value);
  if (!by_tls) return;
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 8'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
}

int Main(int argc, char** argv) {
  std::string socket, tls, form = "unary";
  size_t reply_bytes = 0;
  Reply reply;
  CLI::App app("A bare callback server: what gRPC costs by itself.");
  auto* unix_socket = app.add_option("--socket", socket, "Unix socket");
  app.add_option("--tls", tls, "Directory of server.crt, server.key and ca.crt")->excludes(unix_socket);
  app.add_option("--form", form, "Of Lookup")->check(CLI::IsMember({"unary", "generic"}));
  app.add_option("--reply-bytes", reply_bytes, "Of each message it sends");
  app.add_option("--messages", reply.messages, "That FetchObjects sends");
  CLI11_PARSE(app, argc, argv);
  if (socket.empty() == tls.empty()) {
    fprintf(stderr, "service_bare: name --socket or --tls\n");
    return 1;
  }
  reply.message = OfBytes(reply_bytes);
  grpc::ServerBuilder builder;
  SetLimits(builder, /*by_tls=*/!tls.empty());
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int port = 0;
  if (tls.empty()) {
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
  } else {
    builder.AddListeningPort("127.0.0.1:0", bench::ServerTls(tls), &port);
  }
  Unary unary(&reply);
  Generic generic(&reply);
  if (form == "unary") {
    builder.RegisterService(&unary);
  } else {
    builder.RegisterCallbackGenericService(&generic);
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    fprintf(stderr, "service_bare: cannot listen on %s\n", tls.empty() ? socket.c_str() : "the loopback");
    return 1;
  }
  if (!tls.empty()) {
    printf("serves 127.0.0.1:%d\n", port);
    fflush(stdout);
  }
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
