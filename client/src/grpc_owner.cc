#include "client/src/grpc_owner.h"

#include <unistd.h>

#include <atomic>

namespace kiln {
namespace {

std::atomic<pid_t> owner{0};  // 0: nobody; a child has its parent's

}  // namespace

GrpcOwner OwnerOfGrpc() {
  const pid_t seen = owner.load();
  if (seen == 0) return GrpcOwner::kNobody;
  return seen == getpid() ? GrpcOwner::kThisProcess : GrpcOwner::kParent;
}

bool OwnGrpc() {
  pid_t nobody = 0;
  owner.compare_exchange_strong(nobody, getpid());
  return OwnerOfGrpc() == GrpcOwner::kThisProcess;
}

}  // namespace kiln
