// Whose gRPC the one in this process's memory is. gRPC never ends in a process that has used it: its set of
// descriptors (epoll) stays, which a child that is forked shares with its parent, and its threads, which the
// child has not. What a child adds to the set, the parent is given: pointers into another memory. So gRPC is
// of the process that used it first, and its children call it not at all.
//
// Threads: any.
#pragma once

namespace kiln {

// Before the first use of gRPC: false where it is a parent's; else it is this process's from now on.
bool OwnGrpc();

// Of a process that this one, or one before it, was forked from.
bool IsGrpcOfParent();

}  // namespace kiln
