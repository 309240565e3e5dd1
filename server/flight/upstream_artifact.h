// What the upstream answered, as an artifact of this daemon's store. It is believed no further than it is
// signed: the manifest by a key that counts for the namespace (signing.trusted), for the very request,
// compiler and sizes that were asked about, and each object by its digest.
//
// Threads: pure functions; a signature takes 80 µs, objects are unpacked and hashed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cache/signatures.h"
#include "kiln/v1/artifact.pb.h"
#include "server/build/artifact.h"
#include "server/flight/flight_request.h"
#include "server/upstream/upstream.h"

namespace kiln {

// `request` with the hints that the program has to fit; `fingerprint`: of the upstream's compiler.
// `signatures`: null: everybody's count, for the control of a test. DATA_LOSS says what does not hold.
absl::StatusOr<v1::Manifest> OpenUpstreamManifest(const Signatures* signatures,
                                                  const v1::SignedManifest& signed_manifest,
                                                  const FlightRequest& request,
                                                  const std::string& fingerprint);

// Of such a manifest, and of those of its objects that the store lacks. DATA_LOSS where one is not its
// digest's. `seconds`: what it took to get.
absl::StatusOr<Artifact> UpstreamArtifact(const v1::SignedManifest& signed_manifest,
                                          const v1::Manifest& manifest, Upstream::Objects objects,
                                          const FlightRequest& request, const std::string& fingerprint,
                                          double seconds);

}  // namespace kiln
