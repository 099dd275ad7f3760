// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/json.hpp"
#include "hangs/stacks.hpp"

#include <string>
#include <string_view>

/// The stacks of a job as people and their tools read them. All pure.
namespace elastrun::hangs {

/// Each group of workers with its stack, `most` lines of it at most; `line` begins each line.
std::string stacks_lines(const JobStacks& stacks, std::string_view line, std::size_t most);

/// Which option tells more; empty: Python frames are there.
std::string_view stacks_hint(const JobStacks& stacks);

/// The members of elastrun-protocol(7), Report, hangs.
json::object stacks_json(const JobStacks& stacks);

}  // namespace elastrun::hangs
