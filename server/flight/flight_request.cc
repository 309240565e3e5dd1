#include "server/flight/flight_request.h"

#include "absl/strings/str_cat.h"
#include "compiler/support/proto_util.h"

namespace kiln {

std::string FlightSlot(const std::string& compile_key, const v1::Gang& gang, const v1::Hints& hints) {
  return gang.id().empty() ? compile_key
                           : absl::StrCat(compile_key, gang.id(), SerializeDeterministic(hints));
}

}  // namespace kiln
