#include "server/flight/flight_event.h"

#include "server/flight/gang_verdict.h"

namespace kiln {
namespace {

bool IsCount(const v1::CompileEvent& event) {
  return event.kind_case() == v1::CompileEvent::kEmitted || event.kind_case() == v1::CompileEvent::kTuned;
}

}  // namespace

const std::string& FlightEvent::bytes() const {
  absl::call_once(once_, [this] { bytes_ = message_.SerializeAsString(); });
  return bytes_;
}

const v1::Manifest& FlightEvent::manifest() const {
  // Made here, or verified where it came from.
  absl::call_once(manifest_once_,
                  [this] { manifest_.ParseFromString(message_.done().manifest().manifest()); });
  return manifest_;
}

bool FlightEvent::outdated_by(const FlightEvent& later) const {
  return IsCount(message_) && message_.kind_case() == later.message_.kind_case();
}

FlightEventPtr QueuedEvent(const std::string& job_id, uint32_t position, bool joined) {
  v1::CompileEvent event;
  event.mutable_queued()->set_job_id(job_id);
  event.mutable_queued()->set_position(position);
  event.mutable_queued()->set_joined(joined);
  return std::make_shared<const FlightEvent>(std::move(event));
}

FlightEventPtr DoneEvent(v1::SignedManifest manifest, bool durable, uint32_t workers_lost) {
  v1::CompileEvent event;
  *event.mutable_done()->mutable_manifest() = std::move(manifest);
  event.mutable_done()->set_durable(durable);
  event.mutable_done()->set_workers_lost(workers_lost);
  return std::make_shared<const FlightEvent>(std::move(event));
}

FlightEventPtr StoredEvent(const absl::Status& stored) {
  v1::CompileEvent event;
  event.mutable_done()->set_durable(stored.ok());
  event.mutable_done()->set_not_kept(std::string(stored.message()));
  return std::make_shared<const FlightEvent>(std::move(event));
}

FlightEventPtr KnownEvent(const KnownVariant& variant) {
  v1::LookupReply reply;
  reply.ParseFromString(*variant.reply);
  return DoneEvent(std::move(*reply.mutable_hit()->mutable_manifest()), variant.durable, 0);
}

FlightEventPtr FailedEvent(const absl::Status& status, bool no_verdict) {
  v1::CompileEvent event;
  event.mutable_failed()->set_code(static_cast<int>(status.code()));
  event.mutable_failed()->set_reason(std::string(status.message()));
  event.mutable_failed()->set_no_verdict(no_verdict || IsWithoutVerdict(status));
  return std::make_shared<const FlightEvent>(std::move(event));
}

}  // namespace kiln
