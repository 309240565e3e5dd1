#include "client/runtime/launch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

// A range of less than this many bytes of operands is not worth a second thread.
constexpr int64_t kBytesPerRange = 64 << 10;

absl::Status KernelError(const KilnStatus& status) {
  if (status.code == KILN_INTEGER_DIVISION_BY_ZERO) return absl::FailedPreconditionError("ZeroDivisionError");
  if (status.code == KILN_INDEX_OUT_OF_RANGE) {
    return absl::OutOfRangeError(absl::StrCat("index out of range in self: index ", status.value,
                                              " is out of bounds for dimension with size ", status.bound));
  }
  return absl::InternalError(absl::StrCat("kernel status ", status.code));
}

// The units [begin, end) of the members' in a row.
absl::Status RunRange(const KernelRunner& kernel, absl::Span<const LaunchMember> members, int64_t begin,
                      int64_t end, uint32_t thread, const CallContext& call) {
  for (const LaunchMember& member : members) {
    if (end <= 0) break;
    if (begin < member.units) {
      KILN_RETURN_IF_ERROR(
          kernel.Run(member.args, std::max<int64_t>(begin, 0), std::min(end, member.units), thread, call));
    }
    begin -= member.units;
    end -= member.units;
  }
  return absl::OkStatus();
}

absl::Status RunOnThreads(const KernelRunner& kernel, absl::Span<const LaunchMember> members, int64_t units,
                          int64_t bytes, Host& host, const CallContext& call) {
  const int64_t grain = std::max<int64_t>(1, units / std::max<int64_t>(1, bytes / kBytesPerRange));
  absl::Mutex mutex;
  absl::Status failed;
  KILN_RETURN_IF_ERROR(host.ParallelFor(units, grain, [&](int64_t begin, int64_t end, uint32_t thread) {
    if (absl::Status ran = RunRange(kernel, members, begin, end, thread, call); !ran.ok()) {
      absl::MutexLock lock(&mutex);
      failed.Update(ran);
    }
  }));
  return failed;
}

}  // namespace

absl::StatusOr<uint64_t> RunLaunch(const KernelRunner& kernel, absl::Span<LaunchMember> members,
                                   int64_t bytes, Host& host, const CallContext& call) {
  KilnStatus status = {};
  int64_t units = 0;
  for (LaunchMember& member : members) {
    member.args.struct_size = sizeof(KilnArgs);
    member.args.status = &status;
    units += std::max<int64_t>(member.units, 0);
  }
  if (units == 0) return 0;
  if (call.on_gpu()) return kernel.RunMembers(members, call);
  if (units > 1 && bytes > kBytesPerRange && host.ThreadCount() > 1) {
    KILN_RETURN_IF_ERROR(RunOnThreads(kernel, members, units, bytes, host, call));
  } else {
    KILN_RETURN_IF_ERROR(RunRange(kernel, members, 0, units, 0, call));
  }
  if (status.code != KILN_OK) return KernelError(status);
  return 1;
}

}  // namespace kiln::runtime
