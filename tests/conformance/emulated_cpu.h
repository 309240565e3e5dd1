// A processor of another architecture, emulated by qemu in a process that stays: aarch64_runner, which is
// built where the cross compiler is.
//
// What it shows: results of the code that this build emits. What it does not: speed, and caches of
// instructions that are not coherent. Ownership: the process ends with the object. Threads: one. Errors:
// UNAVAILABLE where emulator or cross compiler is not installed, FAILED_PRECONDITION for code of another
// machine, INTERNAL, with the signal, where the process ended.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/conformance/emulated_frame.h"

namespace kiln::testing {

class EmulatedCpu {
 public:
  struct Buffer {
    std::string* bytes = nullptr;
    uint64_t place = 0;  // from a multiple of 64 bytes
  };

  static absl::StatusOr<std::unique_ptr<EmulatedCpu>> Start();
  EmulatedCpu(const EmulatedCpu&) = delete;
  EmulatedCpu& operator=(const EmulatedCpu&) = delete;
  ~EmulatedCpu();

  // Of the next runs: a flat image, `place` bytes behind the begin of a page.
  absl::Status Load(absl::string_view image, uint64_t place);
  // Runs the pieces one after the other, until one fails. The buffers have what they hold afterwards.
  absl::StatusOr<EmulatedReply> Run(const std::vector<Buffer>& buffers, const std::vector<int64_t>& symbols,
                                    const std::vector<EmulatedPiece>& pieces);

 private:
  EmulatedCpu(pid_t process, int socket) : process_(process), socket_(socket) {}
  absl::Status Send(absl::string_view bytes);
  absl::Status Receive(void* to, size_t bytes);
  absl::Status Ended();  // how, of a process that was to answer

  pid_t process_;  // 0: it ended
  const int socket_;
  std::string image_;  // that is to be sent with the next run
  uint64_t place_ = 0, entry_ = 0;
};

}  // namespace kiln::testing
