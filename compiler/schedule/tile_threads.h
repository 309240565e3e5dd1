// Tiles of two outer loops that a GPU's blocks take by way of shared memory: where loads run against the
// threads but along another outer loop than the last, so that both ways neighbouring threads touch
// neighbouring elements. Threads: pure functions. Errors: INVALID_ARGUMENT for what the kernel does not
// allow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "compiler/schedule/kernel_facts.h"
#include "compiler/target/machine.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

void ChooseTileThreads(const KernelFacts& facts, const Machine& machine, v1::ThreadSchedule* schedule);
absl::Status CheckTileThreads(const KernelFacts& facts, const Machine& machine,
                              const v1::ThreadSchedule& schedule);
std::vector<v1::ThreadSchedule> OtherTileThreads(const KernelFacts& facts, const Machine& machine,
                                                 const v1::ThreadSchedule& own);

// Of a row of a tile in shared memory: rows a bank apart, so that a column lies in as many banks as it has
// rows. `bytes`: of an element.
int64_t TileRowElements(int64_t side, int64_t bytes);

}  // namespace kiln
