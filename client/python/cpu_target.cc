#include "client/python/cpu_target.h"

#include <cpuid.h>

#include <string>

#include "compiler/target/machine.h"

namespace kiln::python {

namespace {

// The group counts only as a whole.
bool HasAvx512() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

CpuVendor ThisVendor() {
  if (__builtin_cpu_is("amd")) return CpuVendor::kAmd;
  return __builtin_cpu_is("intel") ? CpuVendor::kIntel : CpuVendor::kOther;
}

CpuId ThisCpuId() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return {};
  const unsigned family = eax >> 8 & 0xf, model = eax >> 4 & 0xf;
  CpuId id = {.vendor = ThisVendor(), .family = family, .model = model};
  if (family == 0xf) id.family += eax >> 20 & 0xff;
  if (family == 0xf || family == 6) id.model += (eax >> 16 & 0xf) << 4;
  return id;
}

}  // namespace

v1::Target ThisCpu() {
  v1::Target target;
  target.set_triple("x86_64-linux-gnu");
  // Sorted, as the message wants.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool fma = __builtin_cpu_supports("fma");
  const bool bmi2 = __builtin_cpu_supports("bmi2");
  const bool f16c = __builtin_cpu_supports("f16c");
  if (avx2) target.add_features("avx2");
  if (HasAvx512()) {
    for (const char* feature : {"avx512bw", "avx512dq", "avx512f", "avx512vl"}) target.add_features(feature);
  }
  if (bmi2) target.add_features("bmi2");
  if (f16c) target.add_features("f16c");
  if (fma) target.add_features("fma");
  target.set_machine(std::string(CpuMachineName(ThisCpuId())));
  return target;
}

v1::Target GpuTarget(const char* architecture, int64_t multiprocessors) {
  v1::Target target;
  target.set_triple("nvptx64-nvidia-cuda");
  target.add_features(architecture);
  target.set_machine(std::string(GpuMachineName(architecture, multiprocessors)));
  return target;
}

}  // namespace kiln::python
