// What the sandbox of a worker should stop, tried from inside it.
#pragma once

#include <string>
#include <vector>

namespace kiln {

// Names of the calls that should have been stopped and were not, and of what should work and does not.
// `gpu`: in a sandbox with SandboxOptions::gpu.
std::vector<std::string> OpenDoors(bool gpu);

}  // namespace kiln
