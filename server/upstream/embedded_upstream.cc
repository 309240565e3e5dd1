#include "server/upstream/embedded_upstream.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/digest.h"
#include "compiler/support/private_directory.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr char kClientNamespace[] = "default";  // a client's, where its daemon knows no tenants

// Whole, or as it was.
absl::Status Remember(const std::string& directory, const std::string& path, const v1::HelloReply& hello) {
  KILN_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  const std::string next = absl::StrCat(path, ".new");
  std::ofstream file(next, std::ios::binary);
  if (!hello.SerializeToOstream(&file) || !file.flush() || std::rename(next.c_str(), path.c_str()) != 0)
    return absl::UnavailableError(absl::StrCat(path, " cannot be written"));
  return absl::OkStatus();
}

std::optional<v1::HelloReply> Recall(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  v1::HelloReply hello;
  if (!file || !hello.ParseFromIstream(&file)) return std::nullopt;
  return hello;
}

}  // namespace

void AdoptHello(const v1::HelloReply& hello, uid_t own, v1::Config* config) {
  if (!hello.tenant().empty()) {
    v1::TenantConfig* const tenant = config->mutable_listen()->add_tenants();
    tenant->set_name(hello.tenant());
    tenant->add_uids(own);
  }
  const std::string own_namespace = hello.tenant().empty() ? kClientNamespace : hello.tenant();
  for (const v1::TrustedKey& key : hello.trusted_keys()) {
    // One that the farm trusts for other namespaces alone signs nothing that is asked for here.
    if (!key.namespaces().empty() && !absl::c_linear_search(key.namespaces(), own_namespace)) continue;
    v1::TrustedKeyConfig* const trusted = config->mutable_signing()->add_trusted();
    trusted->set_public_key(absl::Base64Escape(key.public_key()));
    trusted->add_namespaces(own_namespace);
  }
}

absl::Status AdoptUpstream(const Upstream& upstream, uid_t own, v1::Config* config) {
  if (config->listen().tenants_size() > 0) return absl::OkStatus();
  // Beside the key that its own entries are believed by: who plants a store brings no trust along.
  const std::string directory = std::filesystem::path(config->signing().key_file()).parent_path();
  // They may be used with another upstream, or another certificate, which says something else.
  const std::string whom =
      Sha256(absl::StrCat(config->upstream().address(), "\n", config->upstream().tls().certificate()));
  const std::string path = absl::StrCat(directory, "/upstream-", ToHex(whom.substr(0, 8)));
  if (const std::optional<v1::HelloReply> said = upstream.Hello(); said.has_value()) {
    AdoptHello(*said, own, config);
    if (const absl::Status kept = Remember(directory, path, *said); !kept.ok())
      spdlog::warn("what the upstream said is not kept: {}", kept.ToString());
    return absl::OkStatus();
  }
  const std::optional<v1::HelloReply> before = Recall(path);
  if (!before.has_value()) {
    return absl::NotFoundError(absl::StrCat("the upstream ", upstream.address(),
                                            " was never reached: ", upstream.Usable().message()));
  }
  AdoptHello(*before, own, config);
  return absl::OkStatus();
}

}  // namespace kiln
