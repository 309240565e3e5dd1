// For members of gangs: marks each error of a client that says nothing of what the other members are served
// (IsWithoutVerdict), be it the service's own word, or that there was none.
//
// Threads: as the client's.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

std::unique_ptr<Client> NewGangClient(std::unique_ptr<Client> client);

}  // namespace kiln
