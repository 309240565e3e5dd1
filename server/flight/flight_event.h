// One event of a compile, made once for all who wait for it: a manifest may be a megabyte and its readers a
// thousand, so they share the message and its serialized bytes.
//
// Immutable; thread-safe. The bytes are made, and a manifest parsed, when the first reader asks.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/status/status.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "server/flight/known_key.h"

namespace kiln {

class FlightEvent {
 public:
  explicit FlightEvent(v1::CompileEvent message) : message_(std::move(message)) {}
  FlightEvent(const FlightEvent&) = delete;
  FlightEvent& operator=(const FlightEvent&) = delete;

  const v1::CompileEvent& message() const { return message_; }
  const std::string& bytes() const;
  // Of one that has a manifest; else empty.
  const v1::Manifest& manifest() const;
  // Whether a later one of its kind says all that this one does, so that a slow reader may miss it.
  bool outdated_by(const FlightEvent& later) const;

 private:
  const v1::CompileEvent message_;
  mutable absl::once_flag once_;
  mutable std::string bytes_;
  mutable absl::once_flag manifest_once_;
  mutable v1::Manifest manifest_;
};
// Shared by every caller who is told.
using FlightEventPtr = std::shared_ptr<const FlightEvent>;

FlightEventPtr QueuedEvent(const std::string& job_id, uint32_t position, bool joined);
FlightEventPtr DoneEvent(v1::SignedManifest manifest, bool durable, uint32_t workers_lost);
// After a DoneEvent that was not durable: how the store took it.
FlightEventPtr StoredEvent(const absl::Status& stored);
// What a KnownVariant's hit says.
FlightEventPtr KnownEvent(const KnownVariant& variant);
// `no_verdict`: see CompileEvent.Failed.
FlightEventPtr FailedEvent(const absl::Status& status, bool no_verdict = false);

}  // namespace kiln
