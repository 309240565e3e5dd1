// Bytes moved and source lines of a manifest's kernels, for one caller: at its sizes, in its own files. A
// manifest itself holds expressions and node indices, which are the same for all callers.
//
// Threads: pure functions. Limits: those below. Errors: what a manifest says wrongly, or overflows, is 0
// bytes or no line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

class BytesMoved {
 public:
  // `exprs`: Manifest.byte_exprs. `hints`: values of the program's symbols.
  BytesMoved(const google::protobuf::RepeatedPtrField<v1::ExprNode>& exprs, const v1::Hints& hints);

  uint64_t Of(const v1::SymInt& bytes) const;

 private:
  std::vector<uint64_t> values_;  // by expression
};

// The lines of a kernel's nodes, each once. `lines`: GraphNotes.source_lines.
std::vector<std::string> SourcesOf(const v1::KernelNotes& kernel,
                                   const google::protobuf::RepeatedPtrField<std::string>& lines);

// The notes with the lines of its nodes in `sources`, for a readable text.
v1::KernelNotes WithSources(v1::KernelNotes kernel,
                            const google::protobuf::RepeatedPtrField<std::string>& lines);

// Brings notes within kTitleBytesMax and kNotesBytesMax. They are for people: where they are too many, names
// of nodes go first, then source lines, then guards, and the graph is compiled all the same.
void LimitNotes(v1::GraphNotes* notes);

}  // namespace kiln
