#include "cache/engine/uses_writer.h"

#include "absl/time/time.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kBetweenUses = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<UsesWriter>> UsesWriter::Create(std::function<void()> write) {
  std::unique_ptr<UsesWriter> writer(new UsesWriter(std::move(write)));
  KILN_ASSIGN_OR_RETURN(writer->thread_, StartThread([made = writer.get()] { made->Run(); }));
  return writer;
}

UsesWriter::~UsesWriter() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void UsesWriter::ThereAreMany() {
  absl::MutexLock lock(&mutex_);
  many_ = true;
}

void UsesWriter::Run() {
  const auto many = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || many_; };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&many));
      if (stopping_) return;
      many_ = false;
    }
    write_();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kBetweenUses);
  }
}

}  // namespace kiln
