#include "client/runtime/interpreted_kernel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/interpreter.h"

namespace kiln::runtime {
namespace {

// Not a KilnStatusCode: the kernel itself is wrong.
constexpr int32_t kInterpreterFailed = -1;

class InterpretedKernel : public KernelRunner {
 public:
  explicit InterpretedKernel(std::unique_ptr<KernelInterpreter> interpreter) : interpreter_(std::move(interpreter)) {}

  int32_t Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t thread) const override {
    absl::StatusOr<int32_t> code = interpreter_->Run(args, begin, end, thread);
    if (code.ok()) return *code;
    args.status->code = kInterpreterFailed;
    return kInterpreterFailed;
  }

 private:
  std::unique_ptr<KernelInterpreter> interpreter_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewInterpretedKernel(const std::string& loop_ir) {
  v1::Kernel kernel;
  if (!kernel.ParseFromString(loop_ir)) return absl::DataLossError("the loop IR of a kernel does not parse");
  auto interpreter = KernelInterpreter::Create(kernel);
  if (!interpreter.ok()) {
    return absl::DataLossError(absl::StrCat("the loop IR of a kernel is wrong: ", interpreter.status().message()));
  }
  return std::make_shared<const InterpretedKernel>(*std::move(interpreter));
}

}  // namespace kiln::runtime
