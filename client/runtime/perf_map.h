// Names for code that no file holds: with KILN_PERF_MAP=1, every loaded kernel is a line of
// /tmp/perf-PID.map, the file in which `perf report` and others look up addresses of code made at run time.
//
//   ADDRESS SIZE kiln::softmax_add_3       both numbers hexadecimal
//
// Lines are only added: an unloaded kernel keeps its own, and a later one at the same address follows it. A
// file that cannot be written is left alone: a profile without names is no reason to stop a job.
//
// Threads: may be called from several at once; a line is one write. A forked child writes a file of its own.
#pragma once

#include "absl/strings/string_view.h"

namespace kiln::runtime {

// Does nothing without KILN_PERF_MAP.
void AddToPerfMap(absl::string_view code, absl::string_view kernel_name);

}  // namespace kiln::runtime
