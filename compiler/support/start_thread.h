// std::thread throws where the host gives no more threads; this says so by a status: UNAVAILABLE, with the
// limit to raise.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace kiln {

template <typename Body>
absl::StatusOr<std::thread> StartThread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("start a thread: ", error.what(),
                                               "; raise the limit of processes (ulimit -u, pids.max)"));
  }
}

}  // namespace kiln
