// Runs blocking work (disk, a compile) on threads of its own, so that strands and RPC threads never block.
#pragma once

#include <functional>

namespace kiln {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` later, never within the call. Any thread.
  virtual void Post(std::function<void()> work) = 0;
};

}  // namespace kiln
