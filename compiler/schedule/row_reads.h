// Which loads read rows from memory in sequence, and how many bytes of a row.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// The bytes of a row that a load reads in sequence, where rows do not overlap and the buffer has at least
// `buffer_bytes_min` bytes; 0 for any other op, and for a row too long for the second-level cache. The op's
// stage must have one inner loop.
int64_t RowBytesRead(const KernelFacts& facts, const Machine& machine, uint32_t op, int64_t buffer_bytes_min);

// The first load of each row that comes from memory, ascending. Ops that the schedule skips do not count, nor
// the stage of a shifted reduction whose loads are its other stage's.
struct RowReads {
  std::vector<uint32_t> loads;
  int64_t row_bytes = 0;  // of all of them
};
RowReads RowReadsOf(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows);

// Does the stage read a row from memory?
bool ReadsRowFromMemory(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
                        const StageFacts& stage);

}  // namespace kiln
