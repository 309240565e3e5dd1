// One launch: a kernel over its operands, or over those of several members.
//
// On the CPU the units of all members are spread over the host's threads together, as many as their bytes
// are worth; on a GPU the kernel itself takes them in one launch, or in as few as its table of members
// allows, on the stream of `call`.
// Errors: the runner's; OUT_OF_RANGE and FAILED_PRECONDITION for what the kernel reports.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/host.h"
#include "client/runtime/kernels.h"

namespace kiln::runtime {

// The operands need buffers, buffer_count and symbols; the rest is set here. `bytes` are what all of them
// span. The result is the number of launches.
absl::StatusOr<uint64_t> RunLaunch(const KernelRunner& kernel, absl::Span<LaunchMember> members,
                                   int64_t bytes, Host& host, const CallContext& call);

}  // namespace kiln::runtime
