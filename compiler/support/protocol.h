// Which versions of kiln.v1 this build speaks. Client and daemon say theirs with each call of Compiler, as
// metadata "kiln-protocol: MIN-MAX". A caller with role forward names the tenant for whom a call is as
// "kiln-on-behalf-of: TENANT" (server/auth). A daemon that passes a call on adds its id to "kiln-hops:
// ID,ID", the daemons that the call has passed. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace kiln {

struct ProtocolRange {
  uint32_t min = 0;
  uint32_t max = 0;
};

inline constexpr ProtocolRange kProtocol = {1, 2};
// From here on a daemon signs its manifests and lists in Hello whose signatures count.
inline constexpr uint32_t kSigningProtocol = 2;
inline constexpr char kProtocolMetadata[] = "kiln-protocol";
inline constexpr char kOnBehalfOfMetadata[] = "kiln-on-behalf-of";
inline constexpr char kHopsMetadata[] = "kiln-hops";

inline std::string ToText(const ProtocolRange& range) { return absl::StrCat(range.min, "-", range.max); }

}  // namespace kiln
