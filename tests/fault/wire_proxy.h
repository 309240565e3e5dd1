// Stands between a client and a kilnd, on a unix socket of its own: passes calls on as bytes, and may change
// what either says, or answer itself. So a daemon of this build is, to a client, one of another, and what a
// client says is seen as it travels. It takes all of a call before it passes it on.
//
// Threads: thread-safe; one a call. The functions are set before there are calls, and called by several
// threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "tests/fault/wire_call.h"

namespace kiln {

class WireProxy final : public grpc::CallbackGenericService {
 public:
  // `socket`: of the daemon; `own`: where the proxy listens.
  WireProxy(const std::string& socket, const std::string& own);
  ~WireProxy() override;

  const std::string& address() const { return address_; }
  // What the client said, as it came.
  std::vector<WireCall> calls() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<WireCall> calls(const std::string& method) const ABSL_LOCKS_EXCLUDED(mutex_);

  std::function<void(WireCall*)> change_call;
  std::function<void(const WireCall&, WireReply*)> change_reply;
  std::function<std::optional<WireReply>(const WireCall&)> answer;  // nothing: the daemon does

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

 private:
  class Call;
  WireReply ReplyTo(WireCall call) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string address_;
  const std::shared_ptr<grpc::Channel> daemon_;  // shared with the calls
  mutable absl::Mutex mutex_;
  std::vector<WireCall> calls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;  // last: its calls use all of the above
};

}  // namespace kiln
