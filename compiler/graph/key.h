// Every key of kiln, in one place. All are 32 raw bytes, SHA-256 over length-prefixed fields that
// start with a tag of their own, so no two kinds of key can be confused.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

// What the client knows. The daemon recomputes it from the sections that are uploaded.
std::string RequestKey(const v1::RequestSections& sections);

// Name and digest of each section in the order of the key: a miss is explained by the first that differs.
std::vector<std::pair<std::string, std::string>> SectionDigests(const v1::RequestSections& sections);

// What the daemon looks up: RequestKey, and what the client does not know.
std::string CompileKey(absl::string_view name_space, absl::string_view request_key, uint32_t program_format,
                       absl::string_view compiler_fingerprint);

// `kernel` is the serialized canonical v1::Kernel handed to `emit`. A tenant's kernels are its own: what
// another had compiled may say something of its graphs, and a worker that is hostile may have written it.
std::string KernelKey(absl::string_view name_space, absl::string_view kernel, const v1::Target& target,
                      uint32_t abi_version, absl::string_view codegen_fingerprint);

// One measurement: for whom (what is measured may be code of his), what was measured, on what kind of GPU and
// library, and how (a policy's name changes with the way of measuring).
std::string TuningKey(absl::string_view name_space, const v1::Tunable& tunable, const v1::GpuFacts& gpu,
                      absl::string_view policy);

// One variant of a CompileKey. `tuning_digest` is empty where nothing was tuned.
std::string VariantId(absl::string_view compile_key, const v1::Guards& guards,
                      absl::string_view tuning_digest);

}  // namespace kiln
