// LLVM's part of the CPUs' back-end: one target machine and one short pass pipeline, made once and used
// for every kernel.
//
// Threads: one at a time. Errors: INTERNAL, with LLVM's words.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "compiler/target/vector_target.h"
#include "llvm/IR/Module.h"

namespace kiln {

class Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const VectorTarget& target);
  ~Optimizer();

  // Data layout, triple and the attributes of every function of the module.
  void Prepare(llvm::Module* module) const;
  absl::Status Optimize(llvm::Module* module);
  absl::StatusOr<std::string> EmitObject(llvm::Module* module);
  absl::StatusOr<std::string> EmitAssembly(llvm::Module* module);

 private:
  struct State;
  explicit Optimizer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kiln
