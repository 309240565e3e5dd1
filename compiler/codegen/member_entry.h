// Entry functions of a GPU's kernel, which wrap the device function that does the work. Its parameters are
// the buffers' addresses, then the symbols; of a kernel with members, then the block's number among those of
// its member, and how many these are.
//
// Ownership: the entry belongs to the body's module. Threads: one a module. Errors: none.
#pragma once

#include "kiln/v1/kernel.pb.h"
#include "llvm/IR/Function.h"

namespace kiln {

// With the body's parameters.
llvm::Function* AddPlainEntry(llvm::Function* body);

// With a MemberTable (compiler/support/member_table.h), in which each block finds the member that it works
// for.
llvm::Function* AddMemberEntry(const v1::Kernel& kernel, llvm::Function* body);

}  // namespace kiln
