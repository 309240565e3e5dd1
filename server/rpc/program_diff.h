// What of two stored programs differs (kilnctl diff): the key's ingredients, counts, the nodes of the graphs
// and the loops of the kernels. The store keeps no graph: its nodes are known by the names and lines that
// came with it for people, without shapes and constants; these show in the loops.
//
// Threads: pure functions. Limits: listings above kListingLinesMax are not compared, and the reply says so.
#pragma once

#include <string>
#include <vector>

#include "kiln/v1/admin.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

struct ComparedEntry {
  v1::RequestRecord record;
  v1::ShownEntry shown;  // with its kernels
};

void CompareEntries(const ComparedEntry& a, const ComparedEntry& b, v1::DiffReply* reply);

}  // namespace kiln
