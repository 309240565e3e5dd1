// Which process owns the gRPC state in this memory. gRPC does not survive a fork: the child shares the
// parent's epoll set, whose events carry pointers of the process that registered them, and has none of its
// threads. So gRPC belongs to the process that used it first, and forked children never call it.
//
// Threads: any.
#pragma once

namespace kiln {

// Call before using gRPC: false where a parent owns it; else this process does from now on.
bool OwnGrpc();

// Of a process that this one, or one before it, was forked from.
bool IsGrpcOfParent();

}  // namespace kiln
