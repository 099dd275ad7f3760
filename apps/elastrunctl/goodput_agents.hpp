// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/journals/journal_outline.hpp"
#include "goodput_files.hpp"

#include <string>
#include <vector>

namespace elastrun::ctl {

/// A journal, with its parts in order.
using JournalFiles = std::vector<std::string>;

/// Journals of agents of one submission of a job (goodput/journals/stitched_journals.hpp), or one
/// file of any kind.
struct Submission {
  std::vector<JournalFiles> journals;
  std::vector<goodput::JournalOutline> outlines;  // of each; none where there is one file alone
};

/// In the order of the first of each. Reads all of them, unless there is one; what cannot be read
/// now fails later.
std::vector<Submission> find_submissions(std::vector<JournalFiles> all);

/// Lets `reader` take several journals of one submission as one. Fails with Io.
Status read_agents(GoodputReader& reader, const Submission& submission);

}  // namespace elastrun::ctl
