// The first NVIDIA GPU, for tests without torch: its target, and memory that the CPU reads and writes as
// well.
//
// One for the process, never released. Threads: one at a time. Errors: UNAVAILABLE where there is no GPU,
// INTERNAL with the driver's words for the rest. A kernel that traps (an index out of range) makes every
// later call fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/host.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::testing {

class GpuDevice {
 public:
  static absl::StatusOr<GpuDevice*> Find();

  const v1::Target& target() const { return target_; }
  runtime::CallContext context() const { return {0, nullptr}; }
  // At least one byte; freed when the last owner goes.
  absl::StatusOr<std::shared_ptr<char>> Allocate(size_t bytes);
  // Until all work is done: before the CPU touches memory that kernels use.
  absl::Status Wait();

 private:
  static absl::StatusOr<GpuDevice> Open();

  int (*allocate_)(uint64_t* address, size_t bytes, unsigned flags) = nullptr;
  int (*free_)(uint64_t address) = nullptr;
  int (*wait_)() = nullptr;
  v1::Target target_;
};

}  // namespace kiln::testing
