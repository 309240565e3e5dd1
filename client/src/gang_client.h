// For members of gangs: marks errors that leave open what the other members are served (IsWithoutVerdict):
// the service said so, or did not answer.
//
// Threads: as the client's.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

std::unique_ptr<Client> NewGangClient(std::unique_ptr<Client> client);

}  // namespace kiln
