#include "compiler/graph/key.h"

#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"

namespace kiln {

std::vector<std::pair<std::string, std::string>> SectionDigests(const v1::RequestSections& sections) {
  return {{"options", Sha256(sections.options())},         {"target", Sha256(sections.target())},
          {"numerics", Sha256(sections.numerics())},       {"facts", Sha256(sections.facts())},
          {"environment", Sha256(sections.environment())}, {"graph", Sha256(sections.graph_digest())}};
}

std::string RequestKey(const v1::RequestSections& sections) {
  Sha256Builder builder;
  builder.AddField("kiln-request-key-1");
  for (const auto& [name, digest] : SectionDigests(sections)) builder.AddField(digest);
  return builder.Finish();
}

std::string CompileKey(absl::string_view name_space, absl::string_view request_key, uint32_t program_format,
                       absl::string_view compiler_fingerprint) {
  return Sha256Builder()
      .AddField("kiln-compile-key-1")
      .AddField(name_space)
      .AddField(request_key)
      .AddNumber(program_format)
      .AddField(compiler_fingerprint)
      .Finish();
}

std::string KernelKey(absl::string_view name_space, absl::string_view kernel, const v1::Target& target,
                      uint32_t abi_version, absl::string_view codegen_fingerprint) {
  return Sha256Builder()
      .AddField("kiln-kernel-key-2")
      .AddField(name_space)
      .AddField(kernel)
      .AddField(SerializeDeterministic(target))
      .AddNumber(abi_version)
      .AddField(codegen_fingerprint)
      .Finish();
}

std::string TuningKey(absl::string_view name_space, const v1::Tunable& tunable, const v1::GpuFacts& gpu,
                      absl::string_view policy) {
  return Sha256Builder()
      .AddField("kiln-tuning-key-3")
      .AddField(name_space)
      .AddField(SerializeDeterministic(tunable))
      .AddField(SerializeDeterministic(gpu))
      .AddField(policy)
      .Finish();
}

std::string VariantId(absl::string_view compile_key, const v1::Guards& guards,
                      absl::string_view tuning_digest) {
  return Sha256Builder()
      .AddField("kiln-variant-1")
      .AddField(compile_key)
      .AddField(SerializeDeterministic(guards))
      .AddField(tuning_digest)
      .Finish();
}

}  // namespace kiln
