// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/job_spec.hpp"
#include "workers/failure.hpp"
#include "workers/shared_page.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace elastrun::agent {

/// The pages of this node's workers (ELASTRUN_PAGE), by local rank: new ones for each start,
/// because a worker must not be taken for the one before. Without one a job goes on, which is said
/// once.
class SharedPages {
 public:
  /// Made only for a job that asks for what is written into them.
  explicit SharedPages(const spec::JobSpec& spec);

  /// Where the next worker of that local rank finds its page; empty: it has none.
  std::string make(int local_rank);
  /// What the worker of that local rank last wrote, whether or not it lives.
  std::optional<workers::PageContents> read(int local_rank) const;
  /// As SharedPage: for the worker of that local rank, if it has one.
  void tell_refused(int local_rank, std::uint64_t count) const;
  /// Tells it to save after that step; -1: at once. Without a page it hears nothing.
  void tell_save(int local_rank, std::int64_t step) const;
  /// What it last wrote goes with its failure.
  void explain(workers::Failure& failure) const;

 private:
  bool wanted_;
  std::map<int, workers::SharedPage> pages_;
};

/// "step 120 (3.2 s before), in phase eval; model/loss=0.25, lr=3e-05 and 4 more"; empty if the
/// worker wrote nothing. `at`: the moment that times are told against. At most `most` values.
std::string page_sentence(const workers::PageContents& page, TimePoint at, std::size_t most);

}  // namespace elastrun::agent
