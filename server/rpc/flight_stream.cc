#include "server/rpc/flight_stream.h"

#include <algorithm>
#include <string>

#include "server/rpc/request_limits.h"
#include "server/rpc/shared_bytes.h"

namespace kiln {

void FlightStream::Event(const FlightEventPtr& event) {
  absl::MutexLock lock(&mutex_);
  if (transport_ == nullptr || end_.has_value()) return;
  std::erase_if(waiting_, [&](const FlightEventPtr& earlier) { return earlier->outdated_by(*event); });
  waiting_.push_back(event);
  SendNext();
}

void FlightStream::Graph(Upload wanted) {
  absl::MutexLock lock(&mutex_);
  if (transport_ != nullptr && !end_.has_value()) transport_->Read(wanted);
}

void FlightStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (transport_ == nullptr || end_.has_value()) return;
  end_ = status;
  SendNext();
}

void FlightStream::OnSent(bool ok) {
  absl::MutexLock lock(&mutex_);
  turn_.reset();
  if (!ok) Drop(absl::CancelledError("the caller left"));
  SendNext();
}

void FlightStream::OnCancel() {
  absl::MutexLock lock(&mutex_);
  Drop(absl::CancelledError("the caller left"));
  if (transport_ != nullptr) SendNext();
}

void FlightStream::Drop(const absl::Status& status) {
  waiting_.clear();
  if (!end_.has_value()) end_ = status;
}

void FlightStream::SendNext() {
  if (turn_.has_value() || finished_) return;
  if (!waiting_.empty()) {
    const FlightEventPtr event = std::move(waiting_.front());
    waiting_.pop_front();
    sending_ = SharedBytes(event->bytes(), event);
    turn_.emplace(*silence_, *context_);
    transport_->Send(&sending_);
  } else if (end_.has_value()) {
    finished_ = true;
    transport_->Finish(EndOfCall(*end_, context_));
  }
}

void FlightStream::Detach() {
  absl::MutexLock lock(&mutex_);
  transport_ = nullptr;
}

}  // namespace kiln
