// SPDX-License-Identifier: Apache-2.0

#include "agent/loop/job_result.hpp"
#include "agent/verdict/verdict.hpp"
#include "core/json.hpp"
#include "elastrun/report_json.hpp"

#include <array>
#include <csignal>
#include <doctest/doctest.h>
#include <functional>
#include <string>

namespace elastrun::agent {
namespace {

using process::ExitStatus;
using EndingKind = Ending::Kind;
using Why = rendezvous::Cause::Kind;

workers::Failure failure(int rank, ExitStatus status, bool stopped) {
  workers::Failure one;
  one.rank = one.local_rank = rank;
  one.status = status;
  one.stopped_by_us = stopped;
  one.at = TimePoint(std::chrono::seconds(10));
  return one;
}

/// What workers of this node can have come to; the first: no group was ever started.
std::vector<std::vector<workers::Failure>> groups() {
  const auto stopped = ExitStatus::signaled(SIGTERM);
  return {
      {},
      {failure(0, ExitStatus::exited(3), false)},
      {failure(0, stopped, true), failure(1, stopped, true)},
      {failure(0, stopped, true), failure(1, ExitStatus::exited(7), false)},
      {failure(0, ExitStatus::signaled(SIGSEGV), true), failure(1, ExitStatus::exited(7), false)},
      {failure(1, ExitStatus::signaled(SIGKILL), false)}};
}

std::vector<rendezvous::Cause> causes() {
  std::vector<rendezvous::Cause> all(1);
  all.push_back({Why::WorkerFailed, "n0", 1, 1, 7, "rank 1 ended with exit code 7", 0});
  all.push_back({Why::WorkerFailed, "n1", 4, 0, -11, "rank 4 was killed by SIGSEGV", 0});
  all.push_back({Why::NodeLost, "n1", -1, -1, 0, "the agent n1 is lost", 0});
  all.push_back({Why::Timeout, "", -1, -1, 0, "too few nodes came", 0});
  return all;
}

/// `nodes`: of the last round; 0: there was none.
JobResult result_of(EndingKind kind, const rendezvous::Cause& cause,
                    const std::vector<workers::Failure>& group, int nodes) {
  JobResult result;
  result.ending.kind = kind;
  result.ending.cause = cause;
  result.ending.why = "why";
  if (nodes > 0) result.round.emplace().members.resize(static_cast<std::size_t>(nodes));
  if (nodes > 0) result.round->members[0].id = "n0";
  if (nodes > 0 && !group.empty()) result.judgement = workers::judge(group);
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  return result;
}

constexpr std::array kKinds{
    EndingKind::Succeeded,      EndingKind::WorkersFailed, EndingKind::JobFailed,
    EndingKind::NotNeeded,      EndingKind::Signalled,     EndingKind::NoStart,
    EndingKind::RendezvousLost, EndingKind::Stuck,         EndingKind::GuardianLost};

/// Calls `check` with each combination.
void with_each(const std::function<void(const JobResult&)>& check) {
  for (const auto kind : kKinds) {
    for (const auto& cause : causes()) {
      for (const auto& group : groups()) {
        for (int nodes = 0; nodes <= 2; ++nodes) {
          CAPTURE(ending_name(kind));
          CAPTURE(cause.text);
          CAPTURE(group.size());
          CAPTURE(nodes);
          check(result_of(kind, cause, group, nodes));
        }
      }
    }
  }
}

std::string in_report(const JobResult& result, std::string_view name) {
  const auto report = parse_json(report_json(result, spec::JobSpec{}, 1));
  REQUIRE(report);
  const auto& culprit = report->as_object().at("culprit");
  if (culprit.is_null()) return "nobody";
  const auto* value = culprit.as_object().if_contains(name);
  return value == nullptr ? "none" : json::serialize(*value);
}

TEST_CASE("culprit: text, report and exit code name the same one, whatever has happened") {
  int named = 0, others = 0;
  with_each([&](const JobResult& result) {
    const auto text = verdict_text(result, "here");
    const auto rank = in_report(result, "rank");
    const int code = exit_code(result, true);
    if (rank == "nobody" || rank == "none") {
      ++others;
      CHECK_FALSE(text.contains("  who "));
      CHECK_FALSE(text.contains("failed first"));
      CHECK(code == (result.succeeded() ? 0 : kExitFailed));
      return;
    }
    ++named;
    if (result.judgement) CHECK(text.contains("  who       rank " + rank + " (local rank "));
    if (result.ending.kind == EndingKind::WorkersFailed) {
      CHECK(verdict_sentence(result).starts_with("rank " + rank + " "));
    }
    const int number = std::stoi(in_report(result, "exit_code"));
    CHECK(code == (number > 0 ? number : 128 - number));
  });
  CHECK(named > 100);
  CHECK(others > 100);
}

TEST_CASE("culprit: a worker that was stopped is none, nor is anybody after a signal") {
  with_each([](const JobResult& result) {
    if (!result.culprit) return;
    CHECK(result.ending.kind != EndingKind::Signalled);
    if (result.culprit->agreed) return;
    REQUIRE(result.judgement);
    CHECK_FALSE(result.judgement->first().stopped_by_us);
    CHECK(result.culprit->cause.rank == result.judgement->first().rank);
  });
}

TEST_CASE("culprit: what several nodes have agreed on wins over what this one has seen") {
  const auto lost = causes()[3];
  const auto result = result_of(EndingKind::WorkersFailed, lost, groups()[1], 2);
  REQUIRE(result.culprit);
  CHECK(result.culprit->agreed);
  CHECK_FALSE(result.culprit->is_worker());
  CHECK(in_report(result, "text") == "\"the agent n1 is lost\"");
  CHECK(exit_code(result, true) == kExitFailed);
}

TEST_CASE("culprit: of a node that is alone the last judgement counts, and its id is told") {
  auto told = causes()[1];
  told.rank = 0;  // when the failure was told, another one seemed to be first
  const auto result = result_of(EndingKind::WorkersFailed, told, groups()[3], 1);
  CHECK(in_report(result, "rank") == "1");
  CHECK(in_report(result, "node") == "\"n0\"");
  CHECK(exit_code(result, true) == 7);
}

TEST_CASE("culprit: a node that comes late to a job that has failed takes its word for it") {
  const auto result = result_of(EndingKind::JobFailed, causes()[2], {}, 0);
  CHECK(in_report(result, "rank") == "4");
  CHECK(exit_code(result, true) == 139);
  CHECK(verdict_sentence(result) == "rank 4 was killed by SIGSEGV (node n1)");
}

}  // namespace
}  // namespace elastrun::agent
