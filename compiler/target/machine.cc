#include "compiler/target/machine.h"

#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

constexpr unsigned kZen2 = 0x17, kZen3And4 = 0x19, kZen5 = 0x1a;  // families of AMD's

CpuMachine Intel() { return {}; }  // whose own are the libraries

CpuMachine Zen3() {
  CpuMachine cpu;
  cpu.prefetch.rows_into_second_level = true;
  return cpu;
}

CpuMachine Zen5() {
  CpuMachine cpu;
  cpu.prefetch.crosses_pages = true;
  return cpu;
}

// Zen 2 with graphics: four cores share 4 MiB, where servers' share 16.
CpuMachine Renoir() {
  CpuMachine cpu;
  cpu.last_level_bytes = 4 << 20;
  return cpu;
}

// By what the processors tell; nothing was measured on one.
CpuMachine Neoverse(int64_t second_level_bytes, int64_t last_level_bytes) {
  CpuMachine cpu;
  cpu.first_level_bytes = 64 << 10;
  cpu.second_level_bytes = second_level_bytes;
  cpu.last_level_bytes = last_level_bytes;
  return cpu;
}
CpuMachine Graviton2() { return Neoverse(1 << 20, 32 << 20); }  // of N1; 3, of V1, has the same
CpuMachine Graviton4() { return Neoverse(2 << 20, 36 << 20); }  // of V2
CpuMachine Grace() { return Neoverse(1 << 20, 114 << 20); }     // likewise

GpuMachine Gpu(int64_t multiprocessors, int64_t second_level_bytes, double memory_bytes_per_ns) {
  GpuMachine gpu;
  gpu.multiprocessors = multiprocessors;
  gpu.second_level_bytes = second_level_bytes;
  gpu.memory_bytes_per_ns = memory_bytes_per_ns;
  return gpu;
}

struct ModelRange {
  unsigned first = 0, last = 0;
};

// Models of a family of x86's; an empty range ends them. A family's row without ranges is of all others, a
// vendor's without a family likewise.
struct CpuRow {
  absl::string_view architecture;  // that a triple begins with
  absl::string_view name;
  CpuMachine (*cpu)();
  CpuVendor vendor;  // of x86's alone, like what follows
  unsigned family;
  ModelRange models[4];
};
constexpr CpuVendor kAmd = CpuVendor::kAmd, kIntel = CpuVendor::kIntel, kOther = CpuVendor::kOther;
constexpr CpuRow kCpus[] = {
    {"x86_64", "renoir", Renoir, kAmd, kZen2, {{0x60, 0x6f}, {0x90, 0x9f}, {0xa0, 0xaf}}},
    {"x86_64", "zen4", Zen3, kAmd, kZen3And4, {{0x10, 0x1f}, {0x60, 0x7f}, {0xa0, 0xaf}}},
    {"x86_64", "zen3", Zen3, kAmd, kZen3And4, {}},
    {"x86_64", "zen5", Zen5, kAmd, kZen5, {}},
    {"x86_64", "intel", Intel, kIntel, 0, {}},
    {"aarch64", "graviton2", Graviton2, kOther, 0, {}},
    {"aarch64", "graviton3", Graviton2, kOther, 0, {}},
    {"aarch64", "graviton4", Graviton4, kOther, 0, {}},
    {"aarch64", "grace", Grace, kOther, 0, {}},
};

struct GpuRow {
  absl::string_view name;
  absl::string_view architecture;
  int64_t multiprocessors;
  int64_t second_level_bytes;
  double memory_bytes_per_ns;
};
// Memory rates are those that the generic row's, an H200's, are to its peak bandwidth.
constexpr GpuRow kGpus[] = {
    {"a100", "sm_80", 108, int64_t{40} << 20, 1600},
    {"h100-pcie", "sm_90", 114, int64_t{50} << 20, 1700},
    {"h100", "sm_90", 132, int64_t{50} << 20, 4000},  // H200 too
    {"b200", "sm_100", 148, int64_t{126} << 20, 6600},
};

bool Has(const CpuRow& row, const CpuId& id) {
  if (row.architecture != "x86_64" || row.vendor != id.vendor) return false;
  if (row.family != 0 && row.family != id.family) return false;
  if (row.models[0].last == 0) return true;
  return absl::c_any_of(
      row.models, [&](const ModelRange& range) { return range.first <= id.model && id.model <= range.last; });
}

// A target has the whole group of features or none of it.
bool HasAvx512(const v1::Target& target) {
  return absl::c_any_of(target.features(), [](absl::string_view feature) {
    return absl::StripPrefix(feature, "+") == "avx512f";
  });
}

// From sm_90 on: any architecture of three digits, or of 9x.
bool HasClusters(const v1::Target& target) {
  return absl::c_any_of(target.features(), [](absl::string_view feature) {
    return absl::ConsumePrefix(&feature, "sm_") &&
           (absl::StartsWith(feature, "9") || absl::StartsWith(feature, "1"));
  });
}

}  // namespace

Machine MachineOf(const v1::Target& target) {
  Machine machine;
  if (IsGpu(target)) {
    const auto row =
        absl::c_find_if(kGpus, [&](const GpuRow& each) { return each.name == target.machine(); });
    if (row != std::end(kGpus)) {
      machine.name = row->name;
      machine.gpu = Gpu(row->multiprocessors, row->second_level_bytes, row->memory_bytes_per_ns);
    }
    if (!HasClusters(target)) machine.gpu.cluster_blocks_max = 1;
    return machine;
  }
  const auto row = absl::c_find_if(kCpus, [&](const CpuRow& each) {
    return each.name == target.machine() && absl::StartsWith(target.triple(), each.architecture);
  });
  const bool intel = row != std::end(kCpus) && row->vendor == kIntel;
  machine.cpu_libraries.mkl_leaves_avx512_unused = HasAvx512(target) && !intel;
  if (row == std::end(kCpus)) return machine;
  machine.name = row->name;
  machine.cpu = row->cpu();
  return machine;
}

absl::string_view CpuMachineName(const CpuId& id) {
  const auto row = absl::c_find_if(kCpus, [&](const CpuRow& each) { return Has(each, id); });
  return row == std::end(kCpus) ? "" : row->name;
}

absl::string_view GpuMachineName(absl::string_view architecture, int64_t multiprocessors) {
  const auto row = absl::c_find_if(kGpus, [&](const GpuRow& each) {
    return each.architecture == architecture && each.multiprocessors == multiprocessors;
  });
  return row == std::end(kGpus) ? "" : row->name;
}

}  // namespace kiln
