// Work that blocks (disk, a compile) on threads of its own, so that who decides and who answers never waits.
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
