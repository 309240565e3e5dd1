// What of two keys differs: the ingredients, and their fields where an ingredient is a message. For people.
// Threads: pure functions. Limits: kFieldsShownMax fields of an ingredient, the rest as a number.
#pragma once

#include <vector>

#include "kiln/v1/admin.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

// How many of the ingredients are the same bytes.
size_t EqualIngredients(const v1::RequestRecord& here, const v1::RequestRecord& there);

// In the order of the key (key.h), the namespace first and the compiler last; empty where both are the same.
std::vector<v1::KeyDifference> KeyDifferences(const v1::RequestRecord& here, const v1::RequestRecord& there);

}  // namespace kiln
