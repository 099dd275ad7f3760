// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/submissions.hpp"

#include <doctest/doctest.h>
#include <utility>

using namespace elastrun;
using namespace elastrun::goodput;
using namespace std::chrono_literals;

namespace {

using Groups = std::vector<std::vector<std::size_t>>;
using Attributes = std::vector<telemetry::Attribute>;

/// An agent that ran from `begin` to `end`.
struct SubmittedAgent {
  /// Without a run id its first line is torn.
  SubmittedAgent(Duration begin, Duration end, std::string run_id = "night") : end_(end) {
    if (run_id.empty()) {
      tell(begin, "phase", {{"phase", std::string("joining")}});
    } else {
      tell(begin, "job.started", {{"run_id", std::move(run_id)}});
    }
  }
  SubmittedAgent& round(Duration at, std::int64_t number, std::int64_t rank,
                        std::string master = "n0") {
    tell(at, "rendezvous.round",
         {{"epoch", std::int64_t{1}},
          {"round", number},
          {"group_rank", rank},
          {"master_addr", std::move(master)},
          {"master_port", std::int64_t{29500}}});
    return *this;
  }
  SubmittedAgent& over(Duration at) {
    tell(at, "job.ended", {{"ending", std::string("workers_failed")}});
    return *this;
  }
  JournalOutline outline() {
    tell(end_, "phase", {{"phase", std::string("ended")}});
    return outline_;
  }

 private:
  void tell(Duration at, std::string name, Attributes attributes) {
    telemetry::Record record;
    record.stamp = {TimePoint(at), WallTime(at)};
    record.scope = "elastrun.agent", record.name = std::move(name);
    record.attributes = std::move(attributes);
    outline_.take(record);
  }
  JournalOutline outline_;
  Duration end_;
};

Groups submissions(std::vector<SubmittedAgent> agents) {
  std::vector<JournalOutline> outlines;
  for (auto& agent : agents) outlines.push_back(agent.outline());
  return submissions_of(outlines);
}

}  // namespace

TEST_CASE("submissions: an agent whose first line is torn is of the job whose round it was in") {
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(0s, 20s, "").round(1s, 1, 1)}) == Groups{{0, 1}});
  CHECK(submissions({SubmittedAgent(0s, 20s, "").round(1s, 1, 0),
                     SubmittedAgent(0s, 20s).round(1s, 1, 1)}) == Groups{{0, 1}});
  CHECK(submissions({SubmittedAgent(0s, 20s, "").round(1s, 1, 0),
                     SubmittedAgent(0s, 20s).round(1s, 2, 1)}) == Groups{{0}, {1}});
}

TEST_CASE("submissions: a spare that no round needed is of the one that it waited beside") {
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0), SubmittedAgent(1s, 20s)}) ==
        Groups{{0, 1}});
  CHECK(submissions({SubmittedAgent(1s, 20s), SubmittedAgent(0s, 20s).round(1s, 1, 0)}) ==
        Groups{{0, 1}});
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0), SubmittedAgent(1s, 20s, "day")}) ==
        Groups{{0}, {1}});
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0), SubmittedAgent(21s, 30s)}) ==
        Groups{{0}, {1}});
}

TEST_CASE("submissions: a spare that ends late is of the one that it met first") {
  CHECK(submissions({SubmittedAgent(11s, 30s).round(12s, 1, 0), SubmittedAgent(1s, 13s),
                     SubmittedAgent(0s, 10s).round(1s, 1, 0)}) == Groups{{0}, {1, 2}});
}

TEST_CASE("submissions: spares that replaced all others go on with their job") {
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(1s, 40s).round(21s, 2, 0)}) == Groups{{0, 1}});
  // In a chain, whatever the order of the files.
  CHECK(submissions({SubmittedAgent(25s, 60s).round(41s, 3, 0),
                     SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(1s, 40s).round(21s, 2, 0)}) == Groups{{0, 1, 2}});
}

TEST_CASE("submissions: what begins beside one that has ended is submitted again") {
  // It is told to wait, because the earlier one is just ending there.
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0).over(20s),
                     SubmittedAgent(15s, 40s).round(21s, 2, 0)}) == Groups{{0}, {1}});
}

TEST_CASE("submissions: two jobs of one name side by side are two") {
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(1s, 20s).round(2s, 1, 1, "n1")}) == Groups{{0}, {1}});
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(1s, 20s).round(2s, 1, 0)}) == Groups{{0}, {1}});
}

TEST_CASE("submissions: a job that begins when its last submission ends is submitted again") {
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(20s, 40s).round(21s, 2, 0)}) == Groups{{0}, {1}});
  // The clocks of two machines.
  CHECK(submissions({SubmittedAgent(0s, 20s).round(1s, 1, 0),
                     SubmittedAgent(19500ms, 40s).round(21s, 2, 0)}) == Groups{{0}, {1}});
}
