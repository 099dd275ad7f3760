// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "spec/job_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace elastrun::workers {

/// What a worker last wrote into the page that it shares with the agent (elastrun-protocol(7)).
/// Text is fit to be shown, numbers are what the worker says they are.
struct PageContents {
  struct Series {
    std::string group, name;
    double value = 0;         // the last one
    std::uint64_t count = 0;  // how many there were
    bool operator==(const Series&) const = default;
  };
  pid_t writer = 0;  // 0: not written yet
  std::optional<std::int64_t> step{};
  TimePoint step_at{};  // by the clock of the machine, like all TimePoints here
  std::string phase{};  // empty: none was entered
  TimePoint phase_at{};
  std::vector<Series> series{};
  bool looks_for_save = false;  // it asks whether it is to save (elastrun.should_save)
  pid_t importer = 0;           // the process that last imported elastrun; 0: none has
};

/// Of the bytes of a page. Hostile until parsed: whatever they are, something comes of it. Pure.
PageContents parse_page(std::string_view bytes);

/// A page in memory that one worker maps and writes, and that this process reads: without the
/// worker's help, so also when it hangs or has been killed. It is read by read(2) and sealed
/// against resizing, so nothing that a worker does with it can disturb us.
class SharedPage {
 public:
  static constexpr std::size_t kSize = 16u << 10;  // 127 series

  /// Fails with Io.
  static Result<SharedPage> make();
  /// Where a process of the same user finds it, for as long as this process has it.
  std::string path() const;
  /// Asks the worker to save after that step; -1: at once.
  void tell_save(std::int64_t step) const;
  /// The bytes as they are, at a moment without a writer if one comes soon.
  std::string bytes() const;
  PageContents read() const { return parse_page(bytes()); }
  /// So much of what the worker has said the agent has not taken: the one number that is ours.
  void tell_refused(std::uint64_t count) const;

 private:
  explicit SharedPage(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
};

/// The pages of this node's workers (ELASTRUN_PAGE), by local rank: new ones for each start,
/// because a worker must not be taken for the one before. Without one a job goes on, which is said
/// once.
class SharedPages {
 public:
  /// Made only for a job that asks for what is written into them.
  explicit SharedPages(const spec::JobSpec& spec);

  /// Where the next worker of that local rank finds its page; empty: it has none.
  std::string make(int local_rank);
  /// The page of the worker of that local rank, whether or not it lives; null: it has none.
  const SharedPage* find(int local_rank) const;
  /// What that worker last wrote.
  std::optional<PageContents> read(int local_rank) const;

 private:
  bool wanted_;
  std::map<int, SharedPage> pages_;
};

/// "step 120 (3.2 s before), in phase eval; model/loss=0.25, lr=3e-05 and 4 more"; empty if the
/// worker wrote nothing. `at`: the moment that times are told against. At most `most` values.
std::string page_sentence(const PageContents& page, TimePoint at, std::size_t most);

}  // namespace elastrun::workers
