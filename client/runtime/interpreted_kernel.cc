#include "client/runtime/interpreted_kernel.h"

#include <utility>

#include "compiler/ir/interpreter.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

class InterpretedKernel : public KernelRunner {
 public:
  explicit InterpretedKernel(std::unique_ptr<KernelInterpreter> interpreter)
      : interpreter_(std::move(interpreter)) {}

  absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t thread,
                   const CallContext&) const override {
    return interpreter_->Run(args, begin, end, thread).status();
  }

 private:
  std::unique_ptr<KernelInterpreter> interpreter_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewInterpretedKernel(const std::string& loop_ir) {
  v1::Kernel kernel;
  KILN_RETURN_IF_ERROR(ParseProto(loop_ir, "loop IR", &kernel));
  KILN_ASSIGN_OR_RETURN(std::unique_ptr<KernelInterpreter> interpreter, KernelInterpreter::Create(kernel));
  return std::make_shared<InterpretedKernel>(std::move(interpreter));
}

}  // namespace kiln::runtime
