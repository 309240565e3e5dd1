#include "server/schedule/thread_executor.h"

#include <utility>

#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {

absl::StatusOr<std::unique_ptr<ThreadExecutor>> ThreadExecutor::Create(size_t threads) {
  std::unique_ptr<ThreadExecutor> executor(new ThreadExecutor);
  for (size_t i = 0; i < threads; ++i) {
    KILN_ASSIGN_OR_RETURN(std::thread thread, StartThread([self = executor.get()] { self->Run(); }));
    executor->threads_.push_back(std::move(thread));
  }
  return executor;
}

ThreadExecutor::~ThreadExecutor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadExecutor::Post(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
}

void ThreadExecutor::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ThreadExecutor::HasWork));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace kiln
