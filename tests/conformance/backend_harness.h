// Runs one kernel on a back-end and on the interpreter with the same data and compares every buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/support/kernel_abi.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Bytes of one buffer.
struct TestBuffer {
  v1::DType dtype;
  std::string bytes;
};

// Random values with the special ones of the dtype among them.
TestBuffer RandomBuffer(v1::DType dtype, int64_t elements, std::mt19937_64& random);
TestBuffer FloatBuffer(v1::DType dtype, const std::vector<double>& values);
TestBuffer IntBuffer(v1::DType dtype, const std::vector<int64_t>& values);

struct Outcome {
  KilnStatus status = {};
  std::vector<TestBuffer> buffers;
};

struct Tolerance {
  double ulps = 0;      // of floats; NaN equals NaN, and -0 equals 0
  double relative = 0;  // or within this part of the largest value of the buffer
  double absolute = 0;  // or this far off
};

// The first difference, or "".
std::string Difference(const std::vector<TestBuffer>& got, const std::vector<TestBuffer>& expected,
                       Tolerance tolerance);

// The kernel with each schedule of threads that the GPU back-end lists for it, its own choice first, and with
// some that it only allows.
std::vector<v1::Kernel> WithEverySchedule(const v1::Kernel& kernel);

// One implementation of kernels.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // Units [0, n) in one call, or split at random points, in random order.
  virtual absl::StatusOr<Outcome> Run(const v1::Kernel& kernel, std::vector<TestBuffer> buffers,
                                      const std::vector<int64_t>& symbols, bool split,
                                      std::mt19937_64& random) = 0;
  // A kernel that fails there traps, which ends the process's use of the device: it must not be run. And its
  // additions to memory take subnormal numbers for zero.
  virtual bool is_gpu() const { return false; }
};

std::unique_ptr<KernelRunner> NewInterpreterRunner();
absl::StatusOr<std::unique_ptr<KernelRunner>> NewBackendRunner(const v1::Target& target);
// The code for AArch64, emulated. UNAVAILABLE where there is no emulator.
absl::StatusOr<std::unique_ptr<KernelRunner>> NewEmulatedRunner();
// The kernel with each schedule of vectors that the back-end of AArch64 lists for it, its own choice first.
std::vector<v1::Kernel> WithEveryNeonSchedule(const v1::Kernel& kernel);
// On the first GPU, where units are not split. UNAVAILABLE where there is none.
// With `members` a launch has several, each with buffers of its own.
absl::StatusOr<std::unique_ptr<KernelRunner>> NewGpuRunner(bool members = false);
// Assembles kernels for sm_80, sm_90a and sm_100 in turn, with KILN_FULL each for all, and fails where that
// gives no machine code. UNAVAILABLE in a build without an assembler.
absl::StatusOr<std::unique_ptr<KernelRunner>> NewAssemblingRunner();
// The same code on the simulator. UNAVAILABLE under AddressSanitizer, which follows no jumps between stacks.
// Without barriers threads do not wait for each other: a control of what a test sees.
absl::StatusOr<std::unique_ptr<KernelRunner>> NewSimulatedGpuRunner(bool barriers = true,
                                                                    bool members = false);

}  // namespace kiln
