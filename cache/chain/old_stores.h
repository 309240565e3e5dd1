// Stores of builds that nobody runs any more. An embedded daemon's store is a directory named by its build,
// so an upgrade starts an empty one beside the old; without this they would stay for ever. Threads: any, for
// different directories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kiln {

inline constexpr int64_t kOldStoreSeconds = 14 * 24 * 3600;

// Removes the stores beside `store` that no process has opened or written for kOldStoreSeconds and that no
// process has open, and returns how many. Only directories (no links) of this user that are named as `store`
// is, by so many lower-case hexadecimal digits, and that hold a database: a store of another name has no
// builds beside it. What can't be read or removed is left for the next time.
size_t RemoveOldStores(const std::string& store, int64_t now_unix_seconds);

}  // namespace kiln
