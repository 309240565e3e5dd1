// kilnd's configuration: a textproto of v1::Config, whose comments are the manual. Flags change the
// message before `CheckConfig`. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

inline constexpr uint32_t kEmbeddedIdleSeconds = 600;

// INVALID_ARGUMENT with line and column for text that is no Config; NOT_FOUND for no such file.
absl::StatusOr<v1::Config> ReadConfigFile(const std::string& path);

// Fills in every default. Where no programs are configured they are kiln-worker and kiln-tuner in `programs`,
// a folder's name that ends with "/". `file`: where the configuration was read from; empty: from nowhere.
void ApplyDefaults(const std::string& programs, const std::string& file, v1::Config* config);

// GPUs of NVIDIA's that this machine shows.
uint32_t CountGpus();

// INVALID_ARGUMENT naming the field.
absl::Status CheckConfig(const v1::Config& config);

// The default of workers.memory_bytes: 4 GiB, where the host has as much for each worker; no less than 1 GiB.
uint64_t WorkerBytesDefault(uint64_t host_bytes, uint32_t workers);

// The least admission.graphs_bytes_max: one graph, its upload, its header.
uint64_t GraphsBytesMin(uint64_t graph_bytes_max);

// Of listen.memory_bytes: one for each tenant's users, one for kilnd's own user, and as many as there are
// tenants for those who come by TLS.
uint64_t MemoryPartsOf(const v1::ListenConfig& listen);

// "127.0.0.1:7711", "[::1]:7711" or "localhost:7711". INVALID_ARGUMENT that names the field for anything but
// loopback.
absl::Status CheckLoopback(absl::string_view field, absl::string_view address);

}  // namespace kiln
