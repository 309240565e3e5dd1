// Which loads walk rows front to back, and how much of a row comes from memory.
// Threads: pure functions. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

// Of a load that walks a row front to back, where rows follow each other and come from a buffer of so many
// bytes; 0 of any other op, and of a row too long for the second-level cache. The op's stage has one inner
// loop.
int64_t RowBytesRead(const KernelFacts& facts, const Machine& machine, uint32_t op, int64_t buffer_bytes_min);

// The first load of each row that comes from memory, ascending; ops that the schedule skips, and a stage that
// reads what a shifted reduction has read, do not count.
struct RowReads {
  std::vector<uint32_t> loads;
  int64_t row_bytes = 0;  // of all of them
};
RowReads RowReadsOf(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows);

// Does the stage walk a row that comes from memory?
bool ReadsRowFromMemory(const KernelFacts& facts, const Machine& machine, const v1::RowSchedule& rows,
                        const StageFacts& stage);

}  // namespace kiln
