// The memory limit of this process: the machine's memory and its control groups (version 2). Threads: pure
// functions. `root` stands before the paths of the kernel's files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kiln {

// UINT64_MAX where the host does not say.
uint64_t HostMemoryBytes(const std::string& root = "");

// How many processes of this one's group the kernel has killed for want of memory; nothing where the host
// does not say.
std::optional<uint64_t> OomKills(const std::string& root = "");

}  // namespace kiln
