#include "server/rpc/request_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "server/flight/refusals.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

absl::Status CheckSection(absl::string_view field, const std::string& bytes, size_t limit) {
  if (bytes.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sections.", field, ": more than ", limit, " bytes"));
}

absl::Status CheckSections(const v1::RequestSections& sections) {
  KILN_RETURN_IF_ERROR(CheckSection("options", sections.options(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("target", sections.target(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("numerics", sections.numerics(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("facts", sections.facts(), kFactsBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("environment", sections.environment(), kSectionBytesMax));
  return CheckDigest("sections.graph_digest", sections.graph_digest());
}

}  // namespace

std::string JobOf(absl::string_view job) {
  size_t size = std::min(job.size(), kJobBytesMax);
  // A text cut within a character is none that a message may hold.
  while (size < job.size() && size > 0 && (static_cast<unsigned char>(job[size]) & 0xC0) == 0x80) --size;
  return std::string(job.substr(0, size));
}

absl::Status CheckNamespace(const std::string& ns) {
  if (ns.size() <= kNamespaceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("namespace: longer than ", kNamespaceBytesMax, " bytes"));
}

absl::Status CheckDigest(absl::string_view field, const std::string& digest) {
  if (digest.size() == kDigestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": is not ", kDigestBytes, " bytes"));
}

absl::Status CheckHints(const v1::Hints& hints) {
  if (hints.values_size() <= kHintsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("hints: more than ", kHintsMax));
}

const v1::Gang& GangOf(const v1::Gang& gang) { return gang.size() > 1 ? gang : v1::Gang::default_instance(); }

absl::Status CheckGang(const v1::Gang& gang) {
  if (gang.id().empty() || gang.id().size() == kGangIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gang.id: has ", gang.id().size(), " bytes, and has to have ", kGangIdBytes));
}

absl::Status CheckUse(const v1::UseReport& use) {
  if (use.executed() <= kExecutedMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("use.executed: more than ", kExecutedMax));
}

absl::Status CheckFetch(const v1::FetchObjectsRequest& request) {
  KILN_RETURN_IF_ERROR(CheckDigest("compile_key", request.compile_key()));
  KILN_RETURN_IF_ERROR(CheckDigest("variant_id", request.variant_id()));
  if (request.digests_size() <= kFetchDigestsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("digests: more than ", kFetchDigestsMax));
}

absl::StatusOr<Caller::Class> WorkClassOf(v1::WorkClass asked) {
  switch (asked) {
    case v1::WORK_INTERACTIVE: return Caller::Class::kInteractive;
    case v1::WORK_BACKGROUND: return Caller::Class::kBackground;
    default: return absl::InvalidArgumentError(absl::StrCat("work_class: there is no ", asked));
  }
}

absl::Status CheckHeader(const v1::CompileHeader& header, uint64_t graph_bytes_max) {
  KILN_RETURN_IF_ERROR(CheckNamespace(header.namespace_()));
  KILN_RETURN_IF_ERROR(CheckHints(header.hints()));
  KILN_RETURN_IF_ERROR(CheckGang(header.gang()));
  KILN_RETURN_IF_ERROR(WorkClassOf(header.work_class()).status());
  KILN_RETURN_IF_ERROR(CheckSections(header.sections()));
  if (header.graph_bytes() == 0) return absl::InvalidArgumentError("graph_bytes: no graph");
  if (header.graph_bytes() > graph_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph_bytes: ", header.graph_bytes(), " is more than ", graph_bytes_max));
  }
  return absl::OkStatus();
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status EndOfCall(const absl::Status& status, grpc::ServerContextBase* context) {
  if (const auto pushback = PushbackOf(status); pushback.has_value())
    context->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(pushback->count()));
  return ToGrpc(status);
}

}  // namespace kiln
