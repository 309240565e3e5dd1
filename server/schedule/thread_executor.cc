#include "server/schedule/thread_executor.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln {

absl::StatusOr<std::unique_ptr<ThreadExecutor>> ThreadExecutor::Create(size_t threads) {
  std::unique_ptr<ThreadExecutor> executor(new ThreadExecutor);
  try {
    for (size_t i = 0; i < threads; ++i)
      executor->threads_.emplace_back(&ThreadExecutor::Run, executor.get());
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("start a thread: ", error.what(),
                                               "; raise the limit of processes (ulimit -u, pids.max)"));
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
