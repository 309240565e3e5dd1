// A stream that is refused before it does anything. gRPC owns it: it deletes itself. Threads: any.
#pragma once

#include "absl/status/status.h"
#include "server/rpc/request_limits.h"

namespace kiln {

template <typename Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& status) { this->Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace kiln
