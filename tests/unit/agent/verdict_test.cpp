// SPDX-License-Identifier: Apache-2.0
#include "agent/verdict/verdict.hpp"

#include "agent/loop/job_result.hpp"
#include "core/json.hpp"
#include "elastrun/end_of_run.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <doctest/doctest.h>
#include <functional>
#include <string>

namespace elastrun::agent {
namespace {

using process::ExitStatus;
using EndingKind = Ending::Kind;
using Why = rendezvous::Cause::Kind;

workers::Failure failure_of(int rank, ExitStatus status, bool stopped = false) {
  workers::Failure one;
  one.rank = one.local_rank = rank;
  one.status = status;
  one.stopped_by_us = stopped;
  return one;
}

/// The end of a job of two nodes that agrees on rank 1 of node "n2", as a node with these failures
/// sees it.
JobResult result_with(std::vector<workers::Failure> failures) {
  JobResult result;
  result.ending.kind = Ending::Kind::WorkersFailed;
  result.ending.cause.node = "n2";
  result.ending.cause.rank = 1;
  result.ending.cause.exit_code = 3;
  result.ending.cause.text = "rank 1 ended with exit code 3";
  result.round.emplace().members.resize(2);
  result.judgement = workers::judge(std::move(failures));
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  return result;
}

/// The same where this node is the whole job.
JobResult alone_with(workers::Failure failure) {
  auto result = result_with({std::move(failure)});
  result.round->members.resize(1);
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  return result;
}

TEST_CASE("verdict: every node has the same sentence about the culprit that all agreed on") {
  const std::string sentence = "rank 1 ended with exit code 3 (node n2)";
  const auto own = result_with({failure_of(1, ExitStatus::exited(3))});
  const auto other = result_with({failure_of(2, ExitStatus::exited(1))});
  CHECK(verdict_sentence(own) == sentence);
  CHECK(verdict_sentence(other) == sentence);
}

TEST_CASE("verdict: another node's culprit is not mixed up with a worker of this one") {
  const auto text = verdict_text(result_with({failure_of(2, ExitStatus::exited(1)),
                                              failure_of(3, ExitStatus::signaled(SIGTERM), true)}),
                                 "here");
  CHECK(text.contains("  who       rank 1 (local rank -1) on node n2, at "));
  CHECK(text.contains("  here      rank 2 ended with exit code 1\n"));
  CHECK(text.contains("  here      rank 3: stopped by elastrun after that\n"));
  CHECK_FALSE(text.contains("who       rank 2"));
}

TEST_CASE("verdict: a culprit of this node is shown with its process") {
  const auto text = verdict_text(result_with({failure_of(1, ExitStatus::exited(3))}), "here");
  CHECK(text.contains("  who       rank 1 (local rank 1, pid 0) on here"));
}

TEST_CASE("verdict: what the culprit last wrote into its page is told") {
  auto one = failure_of(1, ExitStatus::signaled(SIGKILL));
  one.at = TimePoint(std::chrono::seconds(100));
  auto& page = one.page.emplace();
  CHECK_FALSE(verdict_text(result_with({one}), "here").contains("  last "));
  page.step = 120;
  page.step_at = TimePoint(std::chrono::seconds(97));
  page.phase = "eval";
  for (int i = 0; i < 8; ++i) page.series.push_back({"g", "n" + std::to_string(i), 0.5, 1});
  page.series[0].group = "worker";
  CHECK(verdict_text(result_with({one}), "here")
            .contains("  last      step 120 (3.0 s before), in phase eval; n0=0.5, g/n1=0.5, "
                      "g/n2=0.5, g/n3=0.5, g/n4=0.5, g/n5=0.5 and 2 more\n"));
  page.step_at = TimePoint(std::chrono::hours(1'000'000));  // a worker may write anything
  CHECK(verdict_text(result_with({one}), "here").contains("step 120 (0 us before)"));
}

TEST_CASE("verdict: only of failed workers it says why they were not restarted") {
  auto result = result_with({failure_of(1, ExitStatus::exited(3))});
  CHECK(outcome_text(result, {}, {}).contains("not restarted, because --max-restarts is 0"));
  result.ending.kind = Ending::Kind::JobFailed;
  result.ending.cause.kind = rendezvous::Cause::Kind::Timeout;
  result.judgement.reset();
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  CHECK_FALSE(outcome_text(result, {}, {}).contains("not restarted"));
}

TEST_CASE("verdict: of a preemption the steps lost are counted as people count") {
  JobResult result;
  result.ending.kind = Ending::Kind::Preempted;
  result.ending.why = "preempted (SIGTERM)";
  result.preemption.emplace().holds = 20;
  for (const auto* lost : {", 0 steps lost\n", ", 1 step lost since checkpoint 20\n",
                           ", 2 steps lost since checkpoint 20\n"}) {
    result.preemption->step = std::max(result.preemption->step + 1, std::int64_t{20});
    CHECK(outcome_text(result, {}, {}).ends_with(lost));
  }
}

TEST_CASE("verdict: workers that were stopped are nobody's culprits") {
  auto result = result_with({failure_of(0, ExitStatus::signaled(SIGTERM), true)});
  result.ending = {};
  result.ending.kind = Ending::Kind::RendezvousLost;
  result.ending.why = "no answer";
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  CHECK(verdict_text(result, "here") ==
        "elastrun: the rendezvous is lost: no answer\n"
        "  here      rank 0: stopped by elastrun after that\n");
}

TEST_CASE("verdict: alone, the first failure is named as before") {
  auto result = alone_with(failure_of(1, ExitStatus::exited(3)));
  CHECK(verdict_sentence(result) == "rank 1 failed first: it ended with exit code 3");
}

TEST_CASE("verdict: a quoted line steers no terminal, and is as wide as it looks") {
  auto one = failure_of(1, ExitStatus::exited(1));
  std::string wide;
  for (int i = 0; i < 400; ++i) wide += "\x1b[31m\xC3\xBC";
  one.last_lines = {"\x1b[?1049h\x1b[31mred\x1b]0;title\x07", wide};
  auto result = result_with({one});
  CHECK(verdict_text(result, "here").contains("  its last lines on stderr:\n    | red\n    | "));
  CHECK_FALSE(verdict_text(result, "here").contains('\x1b'));
  std::string shown;
  for (int i = 0; i < 150; ++i) shown += "\xC3\xBC";
  CHECK(verdict_text(result, "here").contains("    | " + shown + "\n"));
}

TEST_CASE("verdict: what the console has shown already is quoted only if others spoke as well") {
  auto one = failure_of(1, ExitStatus::exited(1));
  one.stderr_shown = true;
  one.exception = workers::PythonException{"ValueError", "boom"};
  one.last_lines = {"Traceback", "ValueError: boom"};
  auto peer = failure_of(0, ExitStatus::signaled(SIGTERM), true);
  peer.last_lines = {"a warning"};
  CHECK_FALSE(verdict_text(result_with({one, peer}), "here").contains("its last lines"));
  peer = failure_of(0, ExitStatus::exited(1));
  peer.last_lines = {"Traceback of another"};
  CHECK(verdict_text(result_with({one, peer}), "here").contains("    | ValueError: boom\n"));
}

TEST_CASE("outcome: the last line names the rank and what it raised") {
  auto one = failure_of(1, ExitStatus::exited(1));
  one.exception = workers::PythonException{"SyntaxError", "invalid syntax", "train.py:12"};
  auto result = alone_with(one);
  result.goodput.elapsed = std::chrono::milliseconds(12'400);
  spec::JobSpec job;
  job.max_restarts = result.restarts_left = 1;
  const std::string line =
      "elastrun: FAILED after 12.4 s: rank 1: SyntaxError: invalid syntax (train.py:12)";
  CHECK(outcome_text(result, job, {}) == "  note      0 of 1 restarts used\n" + line + "\n");
  const Reader colours{.looks_on = true, .colour = true, .columns = 80};
  CHECK(outcome_text(result, job, colours).ends_with("\n\x1b[1;31m" + line + "\x1b[0m\n"));
  const Reader narrow{.looks_on = true, .columns = 21};
  CHECK(outcome_text(result, job, narrow)
            .ends_with("\nelastrun: FAILED after 12.4 s: rank 1: SyntaxError: invalid..\n"));
}

TEST_CASE("outcome: without an exception it says how the worker ended") {
  auto one = failure_of(1, ExitStatus::exited(3));
  CHECK(reason_text(alone_with(one)) == "rank 1 ended with exit code 3");
  CHECK(reason_text(result_with({one})) == "rank 1 ended with exit code 3 (node n2)");
  // What happened on another node is known by the sentence alone.
  CHECK(reason_text(result_with({failure_of(2, ExitStatus::exited(1))})) ==
        "rank 1 ended with exit code 3 (node n2)");
  CHECK(reason_text(alone_with(failure_of(1, ExitStatus::signaled(SIGKILL)))) ==
        "rank 1 was killed by SIGKILL");
}

Attempt attempt(int number, Duration ran, std::string why) {
  Attempt one;
  one.number = number;
  one.ran = ran;
  one.stopping = std::chrono::milliseconds(500);
  if (!why.empty()) one.cause.emplace().text = std::move(why);
  return one;
}

TEST_CASE("summary: it tells why each restart was needed, when the screen has forgotten it") {
  JobResult result;
  result.restarts = 1;
  spec::JobSpec job;
  job.max_restarts = 1;
  result.attempts = {
      attempt(0, std::chrono::seconds(8), "rank 1 ended with exit code 1 (RuntimeError: crash)"),
      attempt(1, std::chrono::seconds(9), "rank 0 ended with exit code 2"),
      attempt(2, std::chrono::seconds(3), "")};
  result.attempts[1].cause->node = "n2";
  CHECK(account_text(result, job, {}) ==
        "  restarted after 8.0 s: rank 1 ended with exit code 1 (RuntimeError: crash)\n"
        "  restarted after 17.5 s: rank 0 ended with exit code 2\n");
  result.round.emplace().members.resize(2);
  CHECK(account_text(result, job, {}).contains("rank 0 ended with exit code 2 (node n2)\n"));
  CHECK(outcome_text(result, job, {}) == "elastrun: succeeded after 0 us, 1 of 1 restarts used\n");
  result.restarts = 4, result.restarts_left = 1;  // as a checkpoint has refilled them
  CHECK(outcome_text(result, job, {}) ==
        "elastrun: succeeded after 0 us, 4 restarts, 1 of 1 left\n");
}

TEST_CASE("outcome: restarts that were all spent in a moment name the policy that waits") {
  auto result = alone_with(failure_of(1, ExitStatus::exited(3)));
  spec::JobSpec job;
  job.max_restarts = result.restarts = 2;
  result.attempts = {attempt(0, std::chrono::hours(8), "x"), attempt(1, {}, "x"),
                     attempt(2, {}, "")};
  const std::string reason = "rank 1 ended with exit code 3";
  const std::string hint =
      "; 2 restarts within 1.5 s: --restart-policy auto waits longer before each\n";
  CHECK(outcome_text(result, job, {}).ends_with(reason + hint));
  // What is cut for a narrow terminal is the reason.
  CHECK(outcome_text(result, job, {.looks_on = true, .columns = 40}).ends_with(".." + hint));
  result.attempts[1].ran = std::chrono::minutes(2);
  CHECK(outcome_text(result, job, {}).ends_with(reason + "\n"));
  result.attempts[1].ran = {};
  job.restart_policy_auto = true;
  CHECK(outcome_text(result, job, {}).ends_with(reason + "\n"));
}

TEST_CASE("summary: of many restarts the last ones are told") {
  JobResult result;
  for (int i = 0; i < 9; ++i) {
    result.attempts.push_back(attempt(i, std::chrono::seconds(1), "cause " + std::to_string(i)));
  }
  const auto text = account_text(result, {}, {});
  CHECK(text.contains("  restarted 3 times before that\n"));
  CHECK_FALSE(text.contains("cause 2\n"));
  CHECK(text.contains(": cause 3\n"));
  CHECK(text.contains(": cause 7\n"));
  CHECK_FALSE(text.contains("cause 8"));  // of the last attempt: told by the verdict
}

TEST_CASE("verdict: of a worker whose timer has expired the stack is shown, bounded") {
  auto result = alone_with(failure_of(1, ExitStatus::signaled(SIGKILL)));
  auto& first = result.judgement->failures[0];
  first.expired_timer = "expired timer 'load' after 2.0 s";
  for (int i = 0; i < 50; ++i) first.stack.push_back("frame " + std::to_string(i));
  const auto text = verdict_text(result, "here");
  CHECK(text.contains("killed by SIGKILL: expired timer 'load' after 2.0 s\n"));
  CHECK(text.contains("  its stack when the timer expired:\n    | frame 0\n    | frame 1\n"));
  CHECK(text.contains("    | frame 39\n    | and 10 more lines\n"));
  CHECK(text.contains("  next      find out what it waited for"));
}

TEST_CASE("verdict: who mostly sends SIGKILL is told where nobody knows who did") {
  auto result = alone_with(failure_of(1, ExitStatus::signaled(SIGKILL)));
  CHECK(verdict_text(result, "here").contains("  next      mostly an OOM killer "));
  result.judgement->failures[0].out_of_memory = "the kernel killed it: out of memory";
  CHECK_FALSE(verdict_text(result, "here").contains("mostly an OOM killer"));
  result.judgement->failures[0].stopped_by_us = true;  // by our own, then
  result.judgement->failures[0].out_of_memory.clear();
  result.culprit = choose_culprit(result.ending, result.judgement, result.round);
  CHECK_FALSE(verdict_text(result, "here").contains("mostly an OOM killer"));
}

workers::Failure failed(int rank, int pid, ExitStatus status, bool stopped = false) {
  workers::Failure failure;
  failure.rank = failure.local_rank = rank;
  failure.pid = pid;
  failure.status = status;
  failure.stopped_by_us = stopped;
  failure.wall = WallTime(std::chrono::seconds(1'767'323'045));
  failure.at = TimePoint(std::chrono::seconds(1) + std::chrono::milliseconds(rank));
  return failure;
}

std::string report(std::vector<workers::Failure> failures) {
  ::setenv("TZ", "UTC", 1);
  ::tzset();
  return torchrun_report(workers::judge(std::move(failures)), "train.py", "node1");
}

TEST_CASE("report: borders are as wide as the longest line, 60 at most") {
  const auto text = report({failed(0, 7, ExitStatus::signaled(SIGKILL))});
  CHECK(text.starts_with("\n" + std::string(50, '=') + "\ntrain.py FAILED\n"));
  CHECK(text.contains("\n  <NO_OTHER_FAILURES>\n"));
}

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
