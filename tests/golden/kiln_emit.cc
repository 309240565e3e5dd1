// Prints what a kernel becomes, for golden tests: kiln_emit [--avx512|--avx2] < kernel.textproto
#include <google/protobuf/text_format.h>

#include <iostream>
#include <iterator>
#include <string>

#include "compiler/codegen/codegen_backend.h"
#include "tests/conformance/host_target.h"

int main(int argc, char** argv) {
  const bool avx512 = argc > 1 && std::string(argv[1]) == "--avx512";
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  kiln::v1::Kernel kernel;
  if (!google::protobuf::TextFormat::ParseFromString(text, &kernel)) return 2;
  auto backend = kiln::NewCodegenBackend(kiln::X86Target(avx512));
  if (!backend.ok()) {
    std::cerr << backend.status() << "\n";
    return 1;
  }
  kiln::v1::KernelNotes notes;
  notes.set_name("golden");
  auto object = (*backend)->Emit(kernel, notes, true);
  if (!object.ok()) {
    std::cout << object.status() << "\n";
    return 1;
  }
  std::cout << object->listing;
  return 0;
}
