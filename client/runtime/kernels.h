// The executable kernels of one program: native code, or the interpreter for chosen ones.
//
// Threads: immutable; `Run` may be called from many threads at once.
// Errors: DATA_LOSS for an object that is not a valid image.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/host.h"
#include "compiler/support/kernel_abi.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {

// Uncompressed objects by digest, already checked.
using ObjectMap = absl::flat_hash_map<std::string, std::shared_ptr<const std::string>>;

struct LaunchMember {
  KilnArgs args = {};
  int64_t units = 0;  // less than 1: nothing is done
};

class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // What the kernel itself reports is in `args.status`; the result is about the runner.
  // A kernel on a GPU takes its whole range in one launch, on the stream of `call`.
  virtual absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t thread,
                           const CallContext& call) const = 0;
  // All units of all members, whose writes don't conflict. Returns the number of launches.
  virtual absl::StatusOr<uint64_t> RunMembers(absl::Span<const LaunchMember> members,
                                              const CallContext& call) const;
  // Whether the kernel stores to its k-th buffer; true where that is not known.
  virtual bool Stores(size_t /*buffer*/) const { return true; }
};

// Which kernels run on the interpreter: "" none, "all", or positions "0,3,7".
// INVALID_ARGUMENT for another text.
absl::StatusOr<std::vector<bool>> ParseInterpretList(const std::string& text, size_t kernels);

// One runner per Manifest.kernels, in order. They keep the code mapped.
absl::StatusOr<std::vector<std::shared_ptr<const KernelRunner>>> LoadKernels(
    const v1::Manifest& manifest, const ObjectMap& objects, const std::vector<bool>& interpret);

}  // namespace kiln::runtime
