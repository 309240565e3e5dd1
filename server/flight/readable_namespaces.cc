#include "server/flight/readable_namespaces.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {

ReadableNamespaces::ReadableNamespaces(const v1::ListenConfig& listen, std::string compiler_fingerprint)
    : compiler_fingerprint_(std::move(compiler_fingerprint)) {
  for (const v1::TenantConfig& tenant : listen.tenants()) {
    if (!tenant.reads().empty()) reads_[tenant.name()] = {tenant.reads().begin(), tenant.reads().end()};
  }
}

const std::vector<std::string>& ReadableNamespaces::Of(const std::string& tenant) const {
  static const auto* const kNone = new std::vector<std::string>();
  const auto found = reads_.find(tenant);
  return found == reads_.end() ? *kNone : found->second;
}

bool ReadableNamespaces::MayRead(const std::string& tenant, absl::string_view name_space) const {
  return name_space == tenant || absl::c_linear_search(Of(tenant), name_space);
}

std::string ReadableNamespaces::KeyOf(const std::string& name_space, const std::string& request_key) const {
  return CompileKey(name_space, request_key, kProgramFormatVersion, compiler_fingerprint_);
}

}  // namespace kiln
