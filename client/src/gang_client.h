// For members of gangs: marks each error of a client that says nothing of what the other members are served
// (IsWithoutVerdict), be it the service's own word, or that there was none.
//
// Threads: as the client's.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

// Payloads of a status: the service itself said so of a compile; and said that it is no verdict of the
// gang's.
inline constexpr char kAnswered[] = "kiln/answered";
inline constexpr char kWithoutVerdict[] = "kiln/without-verdict";

std::unique_ptr<Client> NewGangClient(std::unique_ptr<Client> client);

}  // namespace kiln
