// Prints what a kernel becomes, for golden tests:
//   kiln_emit [--avx512 | --avx2 | --neon] [MACHINE] < kernel.textproto  loop IR, LLVM IR, assembly
//   kiln_emit --ptx sm_90 [K] < kernel.textproto              the PTX alone, as ptxas takes it; with K, below
//                                                             a line that says the launch: by the K-th
//                                                             schedule of threads that the back-end lists
//   kiln_emit --gemm sm_90 [K] < gemm.textproto               the PTX of a gemm by its K-th
//   schedule
#include <google/protobuf/text_format.h>

#include <iostream>
#include <iterator>
#include <string>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/image/gpu_image.h"
#include "tests/conformance/arm_target.h"
#include "tests/conformance/gpu_target.h"
#include "tests/conformance/host_target.h"

namespace {

int EmitGemm(const kiln::v1::Target& target, const std::string& text, size_t number) {
  kiln::v1::Gemm gemm;
  if (!google::protobuf::TextFormat::ParseFromString(text, &gemm)) return 2;
  auto backend = kiln::NewCodegenBackend(target);
  if (!backend.ok()) {
    std::cerr << backend.status() << "\n";
    return 1;
  }
  auto gemms = (*backend)->EmitGemm(gemm, number + 1);
  if (!gemms.ok()) {
    std::cout << gemms.status() << "\n";
    return 1;
  }
  if (number >= gemms->size()) {
    std::cerr << "only " << gemms->size() << " schedules\n";
    return 1;
  }
  const kiln::EmittedGemm& emitted = (*gemms)[number];
  auto image = kiln::ParseGpuImage(emitted.image);
  if (!image.ok()) {
    std::cout << image.status() << "\n";
    return 1;
  }
  std::cout << "// " << kiln::ScheduleText(emitted.schedule) << ", " << emitted.units << " units\n"
            << image->ptx;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool gemm = argc > 2 && std::string(argv[1]) == "--gemm";
  const bool ptx = argc > 2 && (gemm || std::string(argv[1]) == "--ptx");
  const bool neon = argc > 1 && std::string(argv[1]) == "--neon";
  const bool avx512 = argc > 1 && std::string(argv[1]) == "--avx512";
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  kiln::v1::Target target = ptx    ? kiln::GpuTarget(argv[2])
                            : neon ? kiln::NeonTarget()
                                   : kiln::X86Target(avx512);
  if (argc > 2 && !ptx) target.set_machine(argv[2]);
  if (gemm) return EmitGemm(target, text, argc > 3 ? std::stoul(argv[3]) : 0);
  kiln::v1::Kernel kernel;
  if (!google::protobuf::TextFormat::ParseFromString(text, &kernel)) return 2;
  auto backend = kiln::NewCodegenBackend(target);
  if (!backend.ok()) {
    std::cerr << backend.status() << "\n";
    return 1;
  }
  const bool scheduled = ptx && argc > 3;
  if (scheduled) {
    const auto schedules = (*backend)->Schedules(kernel);
    const size_t number = std::stoul(argv[3]);
    if (number >= schedules.size()) {
      std::cout << "no such schedule: " << schedules.size() << "\n";
      return 1;
    }
    *kernel.mutable_schedule() = schedules[number];
  }
  kiln::v1::KernelNotes notes;
  notes.set_name("golden");
  auto object = (*backend)->Emit(kernel, notes, true);
  if (!object.ok()) {
    std::cout << object.status() << "\n";
    return 1;
  }
  if (ptx) {
    auto image = kiln::ParseGpuImage(object->bytes);
    if (!image.ok()) {
      std::cout << image.status() << "\n";
      return 1;
    }
    if (scheduled) {
      std::cout << "// " << kiln::ScheduleText(kernel.schedule()) << ": " << image->threads
                << " threads a block, " << image->points_per_block << " points\n";
    }
    std::cout << image->ptx;
    return 0;
  }
  std::cout << object->listing;
  return 0;
}
