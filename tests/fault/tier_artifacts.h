// Made-up artifacts for tests of the shared tier: each number has a key, a variant and a kernel of its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cache/artifact_store.h"
#include "cache/signatures.h"

namespace kiln {

inline constexpr char kTierTestNamespace[] = "test";

std::string KeyOf(int number);
std::string VariantOf(int number);
// Bytes that do not compress.
std::string Noise(size_t bytes, int seed);
// Of a key that this process has made, and trusts.
const Signatures& TestSignatures();
// An artifact of one kernel whose object has so many bytes: objects first, the manifest last.
std::vector<Entry> ArtifactOf(int number, size_t bytes = 1000, const std::string& ns = kTierTestNamespace);

}  // namespace kiln
