#include "compiler/codegen/ptx_assembler.h"

#include "absl/status/status.h"

#ifdef KILN_HAS_PTX_COMPILER
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "nvPTXCompiler.h"
#endif

namespace kiln {

#ifndef KILN_HAS_PTX_COMPILER

bool HasPtxAssembler() { return false; }

absl::StatusOr<std::string> AssemblePtx(const std::string&, const std::string&) {
  return absl::UnimplementedError("unsupported: kiln was built without nvPTXCompiler");
}

#else

namespace {

// Which of CUDA's versions was the first with an architecture.
struct First {
  int architecture;
  unsigned major, minor;
};
constexpr First kFirsts[] = {{80, 11, 0}, {86, 11, 1}, {89, 11, 8}, {90, 11, 8}, {100, 12, 8}};

bool Knows(absl::string_view architecture) {
  unsigned major = 0, minor = 0;
  int number = 0;
  absl::ConsumeSuffix(&architecture, "a");
  if (!absl::ConsumePrefix(&architecture, "sm_") || !absl::SimpleAtoi(architecture, &number) ||
      nvPTXCompilerGetVersion(&major, &minor) != NVPTXCOMPILE_SUCCESS) {
    return false;
  }
  return absl::c_any_of(kFirsts, [&](const First& first) {
    return first.architecture == number && std::pair(major, minor) >= std::pair(first.major, first.minor);
  });
}

// One program's compile.
class Compiler {
 public:
  explicit Compiler(const std::string& ptx) {
    if (nvPTXCompilerCreate(&handle_, ptx.size(), ptx.c_str()) != NVPTXCOMPILE_SUCCESS) handle_ = nullptr;
  }
  ~Compiler() {
    if (handle_ != nullptr) nvPTXCompilerDestroy(&handle_);
  }
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  bool Compile(const std::string& option) {
    const char* const options[] = {option.c_str()};
    return handle_ != nullptr && nvPTXCompilerCompile(handle_, 1, options) == NVPTXCOMPILE_SUCCESS;
  }
  std::string Code() const {
    return Text(nvPTXCompilerGetCompiledProgramSize, nvPTXCompilerGetCompiledProgram);
  }
  std::string Errors() const { return Text(nvPTXCompilerGetErrorLogSize, nvPTXCompilerGetErrorLog); }

 private:
  template <typename Size, typename Bytes>
  std::string Text(Size size, Bytes bytes) const {
    size_t count = 0;
    if (handle_ == nullptr || size(handle_, &count) != NVPTXCOMPILE_SUCCESS) return "";
    std::string text(count, '\0');
    return bytes(handle_, text.data()) == NVPTXCOMPILE_SUCCESS ? text : "";
  }

  nvPTXCompilerHandle handle_ = nullptr;
};

}  // namespace

bool HasPtxAssembler() { return true; }

absl::StatusOr<std::string> AssemblePtx(const std::string& ptx, const std::string& architecture) {
  if (!Knows(architecture))
    return absl::UnimplementedError(absl::StrCat("unsupported: nvPTXCompiler does not know ", architecture));
  Compiler compiler(ptx);
  if (!compiler.Compile(absl::StrCat("--gpu-name=", architecture)))
    return absl::InvalidArgumentError(absl::StrCat("nvPTXCompiler: ", compiler.Errors().c_str()));
  std::string code = compiler.Code();
  if (code.empty()) return absl::InternalError("nvPTXCompiler gave no code");
  return code;
}

#endif

}  // namespace kiln
