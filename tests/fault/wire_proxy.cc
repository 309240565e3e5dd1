#include "tests/fault/wire_proxy.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln {

class WireProxy::Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(WireProxy* proxy, grpc::GenericCallbackServerContext* context) : proxy_(proxy), context_(context) {
    call_.method = context->method();
    call_.metadata = OwnMetadata(context->client_metadata());
    StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      call_.messages.push_back(BytesOf(message_));
      StartRead(&message_);
      return;
    }
    absl::MutexLock lock(&proxy_->mutex_);
    proxy_->threads_.emplace_back([this] {
      reply_ = proxy_->ReplyTo(std::move(call_));
      for (const auto& [name, value] : reply_.metadata) context_->AddInitialMetadata(name, value);
      for (const auto& [name, value] : reply_.trailer) context_->AddTrailingMetadata(name, value);
      Next();
    });
  }
  void OnWriteDone(bool) override { Next(); }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (sent_ == reply_.messages.size()) return Finish(reply_.status);
    message_ = BufferOf(reply_.messages[sent_++]);
    StartWrite(&message_);
  }
  WireProxy* const proxy_;
  grpc::GenericCallbackServerContext* const context_;
  WireCall call_;
  WireReply reply_;
  grpc::ByteBuffer message_;
  size_t sent_ = 0;
};

WireProxy::WireProxy(const std::string& socket, const std::string& own)
    : address_(absl::StrCat("unix:", own)),
      daemon_(grpc::CreateChannel(absl::StrCat("unix:", socket), grpc::InsecureChannelCredentials())) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
}

WireProxy::~WireProxy() {
  server_->Shutdown(std::chrono::system_clock::now());
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<WireCall> WireProxy::calls() const {
  absl::MutexLock lock(&mutex_);
  return calls_;
}

std::vector<WireCall> WireProxy::calls(const std::string& method) const {
  std::vector<WireCall> some;
  for (WireCall& call : calls()) {
    if (call.method == method) some.push_back(std::move(call));
  }
  return some;
}

grpc::ServerGenericBidiReactor* WireProxy::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return new Call(this, context);
}

WireReply WireProxy::ReplyTo(WireCall call) {
  {
    absl::MutexLock lock(&mutex_);
    calls_.push_back(call);
  }
  if (answer != nullptr) {
    if (std::optional<WireReply> own = answer(call); own.has_value()) return *std::move(own);
  }
  if (change_call != nullptr) change_call(&call);
  WireReply reply = Say(daemon_, call);
  if (change_reply != nullptr) change_reply(call, &reply);
  return reply;
}

}  // namespace kiln
