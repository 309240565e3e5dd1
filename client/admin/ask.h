// One question to the daemon. A failed call is told to the person and becomes an exit code.
// Threads: none. Limits: the context's seconds.
#pragma once

#include <chrono>

#include "client/admin/commands.h"

namespace kiln {

// What the call's end means: kExitOk, or a line on context.error and another code.
int ExitCodeOf(const AdminContext& context, const grpc::Status& status);

template <typename Request, typename Reply>
int Ask(const AdminContext& context,
        grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
        const Request& request, Reply* reply) {
  auto stub = v1::Admin::NewStub(context.channel);
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(static_cast<int64_t>(context.timeout_seconds * 1e3)));
  return ExitCodeOf(context, (stub.get()->*method)(&call, request, reply));
}

}  // namespace kiln
