// The script by which a shell completes kilnctl's commands and options, made of CLI11's tree of them, so that
// it knows what the program knows. Threads: pure functions.
#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace kiln {

std::string BashCompletion(const CLI::App& app);
std::string ZshCompletion(const CLI::App& app);

}  // namespace kiln
