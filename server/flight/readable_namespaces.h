// Which namespaces a tenant's callers are served from besides their own, by the configuration
// (listen.tenants.reads), and what a program's key is there. Immutable; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

class ReadableNamespaces {
 public:
  // Keys are of this compiler.
  ReadableNamespaces(const v1::ListenConfig& listen, std::string compiler_fingerprint);

  // In the order in which they are read; most tenants have none.
  const std::vector<std::string>& Of(const std::string& tenant) const;
  bool MayRead(const std::string& tenant, absl::string_view name_space) const;
  std::string KeyOf(const std::string& name_space, const std::string& request_key) const;

 private:
  const std::string compiler_fingerprint_;
  absl::flat_hash_map<std::string, std::vector<std::string>> reads_;  // by tenant; of those that have some
};

}  // namespace kiln
