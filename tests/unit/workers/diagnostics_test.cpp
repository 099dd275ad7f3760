// SPDX-License-Identifier: Apache-2.0
#include "workers/diagnostics.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <utility>

namespace elastrun::workers {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;
using Lines = std::vector<std::string>;
using spec::CauseClass;

/// A failure of a rank, some milliseconds after the start of the second that starts at 100 s.
Failure failed(int rank, ExitStatus status, int milliseconds, bool stopped = false) {
  Failure failure;
  failure.rank = failure.local_rank = rank;
  failure.status = status;
  failure.stopped_by_us = stopped;
  const auto offset = std::chrono::milliseconds(100'000 + milliseconds);
  failure.at = TimePoint(offset);
  failure.wall = WallTime(offset);
  return failure;
}

Failure raised(Failure failure, std::string type, std::string message) {
  failure.exception = PythonException{std::move(type), std::move(message)};
  return failure;
}

Failure dated(Failure failure, std::int64_t second) {
  failure.error_file.emplace();
  failure.error_file->understood = true;
  failure.error_file->timestamp = second;
  return failure;
}

Lines joined(std::initializer_list<Lines> parts) {
  Lines all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("diagnostics: a script that cannot be parsed is named with its line") {
  const std::vector<std::string> lines{"  File \"/home/me/train.py\", line 12", "    x = = 3",
                                       "        ^", "SyntaxError: invalid syntax"};
  const PythonException expected{"SyntaxError", "invalid syntax", "train.py:12"};
  CHECK(exception_in(lines) == expected);
  CHECK(expected.text() == "SyntaxError: invalid syntax (train.py:12)");
  CHECK(
      exception_in(joined({{"Traceback (most recent call last):",
                            "  File \"/home/me/main.py\", line 1, in <module>", "    import train"},
                           lines})) == expected);
  CHECK_FALSE(exception_in({"  File \"/home/me/train.py\", line 12", "Warning: odd"}));
  CHECK_FALSE(exception_in({"some output", "SyntaxError: of a parser of ours"}));
}

TEST_CASE("diagnostics: an error file that could not be written is not why the worker failed") {
  const std::vector<std::string> written{
      "During handling of the above exception, another exception occurred:",
      "",
      "Traceback (most recent call last):",
      "  File \"/torch/errors/__init__.py\", line 358, in wrapper",
      "    handler.record(e)",
      "  File \"/torch/errors/error_handler.py\", line 86, in record_exception",
      "    self._write_error_file(file, json.dumps(data))",
      "  File \"/torch/errors/error_handler.py\", line 60, in _write_error_file",
      "OSError: [Errno 28] No space left on device"};
  CHECK(exception_in(written)->type == "OSError");  // when that is all there is
  std::vector<std::string> lines{
      "Traceback (most recent call last):", "  File \"train.py\", line 3, in main",
      "RuntimeError: DataLoader worker is killed by signal: Bus error", ""};
  lines.insert(lines.end(), written.begin(), written.end());
  CHECK(exception_in(lines)->type == "RuntimeError");
}

TEST_CASE("diagnostics: the exception is read from the end of stderr") {
  const std::string header = "Traceback (most recent call last):";
  const std::pair<Lines, const char*> rows[] = {
      {{"some output", header, "  File \"train.py\", line 3, in main", "    raise ValueError",
        "ValueError: boom: really", "more output"},
       "ValueError: boom: really"},
      // An import is named with the user's line, not the library's.
      {{header, "  File \"/home/me/train.py\", line 3, in <module>", "    import pandas",
        "  File \"/venv/lib/python3.11/site-packages/pandas/__init__.py\", line 9, in <module>",
        "    import numpy", "ModuleNotFoundError: No module named 'numpy'"},
       "ModuleNotFoundError: No module named 'numpy' (train.py:3)"},
      // The last one of a chain counts.
      {{header, "  File \"a\"", "KeyError: 'x'", "",
        "During handling of the above exception, another exception occurred:", "", header,
        "  File \"b\"", "my.module.MyError"},
       "my.module.MyError"},
      // Torch puts the rank in front of each line.
      {{"[rank12]: " + header, "[rank12]:   File \"x\"", "[rank12]: RuntimeError: gloo"},
       "RuntimeError: gloo"},
      {{}, ""},
      {{"ValueError: only printed"}, ""},
      {{header, "  File \"x\""}, ""},
      {{header, "what is this: no type"}, ""},
  };
  for (const auto& [lines, text] : rows) {
    CHECK(exception_in(lines).value_or(PythonException()).text() == text);
  }
}

const Lines kFrame{"  File \"train.py\", line 7, in deep", "    go_on()"};

TEST_CASE("diagnostics: the end of a traceback is enough where its start was forgotten") {
  const auto end = joined({kFrame, {"KeyError: 1"}});
  CHECK(exception_in(end, false) == PythonException{"KeyError", "1"});
  CHECK_FALSE(exception_in(end));
  // Cut between lines, in the header, in a source line, in torch's rank.
  for (const auto* first : {"    go_on()", "ack (most recent call last):", "on()", "k0]:     x"}) {
    CAPTURE(first);
    CHECK(exception_in(joined({{first}, end}), false) == PythonException{"KeyError", "1"});
  }
  CHECK_FALSE_MESSAGE(exception_in(joined({{"one", "two"}, end}), false), "it would be there");
  // faulthandler(3), and what a shell says of it.
  CHECK_FALSE(exception_in({"Current thread 0x1 (most recent call first):",
                            "  File \"train.py\", line 7 in deep", "Aborted"},
                           false));
  CHECK_FALSE(exception_in({"  File \"train.py\", line 7 in deep", "Aborted"}, false));
}

TEST_CASE("diagnostics: a stack that a program prints is no traceback") {
  const auto stack = joined({{"Stack (most recent call last):"}, kFrame});
  const auto raised = joined({{"ERROR:root:lost", "Traceback (most recent call last):"},
                              kFrame,
                              {"RuntimeError: connection reset by peer"}});
  const auto warned = joined({{"WARNING:root:slow"}, stack, {"WARNING: will go on"}});
  const PythonException lost{"RuntimeError", "connection reset by peer"};
  for (const bool are_all : {true, false}) {
    CAPTURE(are_all);
    CHECK(exception_in(joined({raised, warned}), are_all) == lost);
    CHECK(exception_in(joined({raised, stack, {"loss: 0.25"}}), are_all) == lost);
    CHECK(exception_in(joined({raised, kFrame, {"loss: 0.25"}}), are_all) == lost);
    CHECK_FALSE(exception_in(warned, are_all));
    CHECK_FALSE(exception_in(joined({stack, {"loss: 0.25"}}), are_all));
  }
  // traceback.print_stack() writes no header.
  CHECK_FALSE(exception_in(joined({kFrame, {"loss: 0.25"}})));
  CHECK_FALSE(exception_in(joined({{"step 1"}, kFrame, {"loss: 0.25"}})));
}

TEST_CASE("diagnostics: a traceback in colours is read like any other") {
  // Python 3.13, FORCE_COLOR=1.
  const Lines coloured{
      "Traceback (most recent call last):",
      "  File \x1b[35m\"train.py\"\x1b[0m, line \x1b[35m7\x1b[0m, in \x1b[35mdeep\x1b[0m",
      "    \x1b[31mgo_on\x1b[0m\x1b[1;31m()\x1b[0m",
      "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'a'\x1b[0m"};
  const auto plain = exception_in(joined(
      {{"Traceback (most recent call last):"}, kFrame, {"TimeoutError: got over"}, coloured}));
  CHECK(plain == PythonException{"KeyError", "'a'"});
  CHECK(exception_in({coloured.begin() + 1, coloured.end()}, false) == plain);
  Failure failure;
  failure.error_file = parse_error_file(R"({"message": {"message": "KeyError: \u001b[2Ja"}})");
  CHECK(exception_of(failure) == PythonException{"KeyError", "a"});
}

TEST_CASE("diagnostics: an exception group is named, not what was got over before, nor a part") {
  const Lines older = joined({{"Traceback (most recent call last):"}, kFrame, {"KeyError: 'old'"}});
  const Lines group{"  + Exception Group Traceback (most recent call last):",
                    "  |   File \"train.py\", line 17, in <module>",
                    "  |     main()",
                    "  | ExceptionGroup: two went wrong (2 sub-exceptions)",
                    "  | a note: of it",
                    "  +-+---------------- 1 ----------------",
                    "    | Traceback (most recent call last):",
                    "    |   File \"train.py\", line 3, in deep",
                    "    | ValueError: boom",
                    "    +---------------- 2 ----------------",
                    "    | ExceptionGroup: inner (1 sub-exception)",
                    "    +-+---------------- 1 ----------------",
                    "      | TypeError: inner",
                    "      +------------------------------------"};
  const PythonException named{"ExceptionGroup", "two went wrong (2 sub-exceptions)"};
  CHECK(exception_in(joined({older, group})) == named);
  CHECK(exception_in({group.begin() + 1, group.end()}, false) == named);
  auto of_rank = group;
  for (auto& line : of_rank) line.insert(0, "[rank3]: ");
  CHECK(exception_in(joined({older, of_rank})) == named);
  const Lines after = joined({{"", "Traceback (most recent call last):"}, kFrame, {"OSError: 1"}});
  CHECK(exception_in(joined({group, after}))->type == "OSError");
  CHECK_FALSE(exception_in({"a table:", "  | KeyError: 1", "    | KeyError: 2"}));
}

TEST_CASE("diagnostics: a worker that fails by itself is the root, those we stopped follow") {
  const auto judgement = judge({failed(0, ExitStatus::signaled(SIGTERM), 20, true),
                                failed(1, ExitStatus::exited(3), 5),
                                failed(2, ExitStatus::signaled(SIGTERM), 19, true)});
  REQUIRE(judgement.failures.size() == 3);
  CHECK(judgement.failures[0].rank == 1);
  CHECK(judgement.failures[1].rank == 0);
  CHECK(judgement.failures[2].rank == 2);
  CHECK(judgement.root == 0);
  CHECK(judgement.culprit == 0);
  CHECK(judgement.consequence == std::vector<bool>{false, true, true});
}

TEST_CASE("diagnostics: an older error file makes the root, whoever ended first") {
  const auto judgement = judge({dated(failed(0, ExitStatus::exited(1), 1), 100),
                                dated(failed(1, ExitStatus::exited(1), 9), 40),
                                dated(failed(2, ExitStatus::exited(1), 5), 70)});
  CHECK(judgement.failures[judgement.root].rank == 1);
  CHECK(judgement.root == 1);
}

TEST_CASE("diagnostics: within one second the order in which ends were seen decides") {
  // Error files know whole seconds only: 100 is not earlier than 100.002.
  const auto judgement = judge({dated(failed(0, ExitStatus::exited(1), 900), 100),
                                failed(1, ExitStatus::signaled(SIGSEGV), 2)});
  CHECK(judgement.failures[judgement.root].rank == 1);
}

TEST_CASE("diagnostics: who only lost a peer is not to blame when another one crashed") {
  const auto judgement =
      judge({raised(failed(0, ExitStatus::exited(1), 1), "RuntimeError",
                    "[../gloo/transport/tcp/pair.cc:1] Connection closed by peer"),
             failed(1, ExitStatus::signaled(SIGSEGV), 300, true)});
  CHECK(judgement.failures[judgement.root].rank == 0);
  CHECK(judgement.first().rank == 1);
  CHECK(judgement.consequence == std::vector<bool>{true, false});
}

TEST_CASE("diagnostics: who lost a peer stays the culprit when nobody else died by itself") {
  const auto judgement = judge(
      {raised(failed(0, ExitStatus::exited(1), 1), "RuntimeError", "Connection reset by peer"),
       failed(1, ExitStatus::signaled(SIGTERM), 30, true)});
  CHECK(judgement.first().rank == 0);
}

TEST_CASE("diagnostics: who ended without a word is to blame rather than who lost a peer") {
  const auto judgement = judge(
      {raised(failed(0, ExitStatus::exited(1), 1), "RuntimeError", "Connection closed by peer"),
       failed(1, ExitStatus::exited(3), 30)});
  CHECK(judgement.first().rank == 1);
}

/// The traceback began so long before the end of the worker was seen.
Failure after(Failure failure, std::chrono::milliseconds since_traceback) {
  failure.traceback_at = failure.at - since_traceback;
  return failure;
}

TEST_CASE("diagnostics: the older traceback makes the culprit, whoever's interpreter ended first") {
  const auto slow = after(raised(failed(0, ExitStatus::exited(1), 400), "ValueError", "x"), 390ms);
  const auto quick = after(raised(failed(1, ExitStatus::exited(1), 30), "KeyError", "y"), 10ms);
  CHECK(evident_at(slow) < evident_at(quick));
  CHECK(judge({quick, slow}).first().rank == 0);
  // Also where the end came in the next second, by which torchrun chooses its root.
  auto slower = slow;
  slower.at += 1s;
  slower.wall += 1s;
  slower.traceback_at = slow.traceback_at;
  const auto judgement = judge({quick, slower});
  CHECK(judgement.failures[judgement.root].rank == 1);
  CHECK(judgement.first().rank == 0);
}

TEST_CASE("diagnostics: a traceback of long ago, or before a signal, says nothing of this end") {
  const auto survived = after(failed(0, ExitStatus::exited(1), 40), 11s);
  CHECK(evident_at(survived) == survived.at);
  const auto killed = after(failed(0, ExitStatus::signaled(SIGKILL), 40), 20ms);
  CHECK(evident_at(killed) == killed.at);
  CHECK(judge({failed(1, ExitStatus::exited(3), 30), killed}).first().rank == 1);
}

TEST_CASE("diagnostics: an error file says by its own time when the failure was") {
  auto recorded = failed(0, ExitStatus::exited(1), 80);
  recorded.error_file.emplace();
  recorded.error_file->written = recorded.wall - 70ms;
  CHECK(evident_at(recorded) == recorded.at - 70ms);
  CHECK(judge({failed(1, ExitStatus::exited(3), 30), recorded}).first().rank == 0);
  recorded.error_file->written = recorded.wall + 1h;  // a file server with another clock
  CHECK(evident_at(recorded) == recorded.at);
}

/// It raised by itself, or lost a peer, ten milliseconds before its end.
Failure own_failure(int rank, int milliseconds) {
  return after(raised(failed(rank, ExitStatus::exited(1), milliseconds), "KeyError", "y"), 10ms);
}
Failure victim_at(int milliseconds) {
  return after(
      raised(failed(1, ExitStatus::exited(1), milliseconds), "RuntimeError", "Broken pipe"), 10ms);
}

TEST_CASE("diagnostics: nobody needs to be waited for when the first one is known") {
  const auto own = own_failure(0, 30), victim = victim_at(30);
  const auto running = [](std::chrono::milliseconds since_traceback) {
    return after(failed(2, ExitStatus::exited(1), 40), since_traceback);
  };
  const auto silent = failed(3, ExitStatus::exited(1), 40);
  CHECK(is_first_known({own}, {}));
  CHECK(is_first_known({failed(0, ExitStatus::exited(3), 5)}, {silent}));
  CHECK(is_first_known({own}, {silent, running(19ms)}));
  CHECK_MESSAGE(is_first_known({own}, {running(11s)}), "got over it");
  CHECK_FALSE(is_first_known({own}, {silent, running(19ms), running(21ms)}));
  CHECK_FALSE_MESSAGE(is_first_known({own}, {dated(silent, 100)}), "it is ending, too");
  CHECK_FALSE(is_first_known({victim}, {}));
  CHECK(is_first_known({victim, own}, {}));
}

/// Stopped so long after the others began to end, its traceback so long before that.
Failure stopped(Failure failure, std::chrono::milliseconds since_traceback) {
  failure.stopped_by_us = true;
  failure.stopped_at = failure.at - 5s;  // its grace
  failure.traceback_at = failure.wrote_at = failure.stopped_at - since_traceback;
  return failure;
}

TEST_CASE("diagnostics: who had said why it fails before it was stopped is to blame") {
  const auto victim = victim_at(100);
  const auto raises =
      raised(failed(0, ExitStatus::signaled(SIGTERM), 5150, true), "ValueError", "x");
  const auto cut = stopped(raises, 150ms);
  const auto judgement = judge({victim, cut});
  CHECK(judgement.first().rank == 0);
  CHECK(judgement.consequence == std::vector<bool>{false, true});
  CHECK(what_happened(judgement.first()) ==
        "raised ValueError: x, and was stopped before it had ended");
  CHECK(judge({failed(1, ExitStatus::exited(1), 100), cut}).first().rank == 0);
  CHECK(judge({failed(1, ExitStatus::signaled(SIGSEGV), 100), cut}).first().rank == 0);
  CHECK_MESSAGE(judge({victim, stopped(raises, -10ms)}).first().rank == 1, "by our signal");
  CHECK_MESSAGE(judge({victim, stopped(raises, 11s)}).first().rank == 1, "got over it");
  // Who has written more since may have got over it: that counts only where others blame a peer.
  auto goes_on = stopped(raises, 3s);
  goes_on.wrote_at = goes_on.stopped_at;
  CHECK(judge({victim, goes_on}).first().rank == 0);
  CHECK(judge({own_failure(1, 100), goes_on}).first().rank == 1);
}

TEST_CASE("diagnostics: who still runs counts as if it were stopped now") {
  const auto victim = victim_at(100);
  const auto silent = failed(2, ExitStatus::exited(1), 150);
  const auto raises = after(raised(failed(0, ExitStatus::exited(1), 150), "ValueError", "x"), 90ms);
  const auto judgement = judge({victim}, {silent, raises});
  CHECK(judgement.failures.size() == 2);
  CHECK(judgement.first().rank == 0);
  auto recorded = dated(silent, 100);
  recorded.error_file->written = recorded.wall - 80ms;
  CHECK(what_happened(judge({victim}, {recorded}).first()) ==
        "wrote its error file, and was stopped before it had ended");
  CHECK(judge({victim}, {silent}).failures.size() == 1);
}

TEST_CASE("diagnostics: a clock that was set back does not make the last one the first") {
  auto first = failed(1, ExitStatus::exited(3), 5);
  auto last = failed(0, ExitStatus::signaled(SIGTERM), 40, true);
  last.wall -= std::chrono::hours(1);
  const auto judgement = judge({last, first});
  CHECK(judgement.failures[judgement.root].rank == 1);
  CHECK(judgement.first().rank == 1);
}

TEST_CASE("diagnostics: whom NCCL's watchdog ended has waited for somebody else") {
  auto waited = failed(0, ExitStatus::signaled(SIGABRT), 1);
  waited.last_lines = {
      "[rank0]:[E1121 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective "
      "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"};
  CHECK(ended_by_watchdog(waited));
  CHECK(what_happened(waited) ==
        "was killed by SIGABRT (NCCL's watchdog: other ranks did not answer in time)");
  const auto judgement = judge({waited, failed(1, ExitStatus::signaled(SIGSEGV), 30)});
  CHECK(judgement.first().rank == 1);
  CHECK(judgement.consequence == std::vector<bool>{true, false});
  waited.last_lines = {"Fatal Python error: Aborted"};
  CHECK_FALSE(ended_by_watchdog(waited));
  CHECK(judge({waited, failed(1, ExitStatus::signaled(SIGSEGV), 30)}).first().rank == 0);
}

TEST_CASE("diagnostics: signs of a peer that has gone") {
  for (const char* text :
       {"[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242",
        "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete",
        "Application timeout caused pair closure", "NCCL error: ncclRemoteError"}) {
    CAPTURE(text);
    CHECK(blames_a_peer(text));
  }
  CHECK_FALSE(blames_a_peer("ValueError: boom"));
}

TEST_CASE("diagnostics: what happened is one phrase") {
  auto failure = failed(0, ExitStatus::exited(3), 0);
  CHECK(what_happened(failure) == "ended with exit code 3");
  CHECK(what_happened(raised(failure, "ValueError", "boom")) ==
        "ended with exit code 3 (ValueError: boom)");
  failure.status = ExitStatus::signaled(SIGKILL);
  failure.out_of_memory = "memory ran out";
  CHECK(what_happened(failure) == "was killed by SIGKILL: memory ran out");
  failure.expired_timer = "expired timer 'load' after 2.0 s";
  CHECK(what_happened(failure) == "was killed by SIGKILL: expired timer 'load' after 2.0 s");
}

TEST_CASE("diagnostics: the error file's exception is preferred to that of stderr") {
  auto failure = failed(0, ExitStatus::exited(1), 0);
  failure.last_lines = {"Traceback (most recent call last):", "KeyError: 'printed'"};
  CHECK(exception_of(failure) == PythonException{"KeyError", "'printed'"});
  failure.error_file = parse_error_file(R"({"message": {"message": "ValueError: recorded"}})");
  CHECK(exception_of(failure) == PythonException{"ValueError", "recorded"});
}

Failure raised(const std::string& type, const std::string& message,
               std::vector<std::string> lines = {}) {
  Failure failure;
  failure.status = {ExitStatus::How::Exited, 1};
  failure.exception = PythonException{type, message};
  failure.last_lines = std::move(lines);
  return failure;
}

Failure killed(int signal, std::vector<std::string> lines = {}) {
  Failure failure;
  failure.status = {ExitStatus::How::Signaled, signal};
  failure.last_lines = std::move(lines);
  return failure;
}

}  // namespace

TEST_CASE("fingerprint: one of a megabyte is as short here as for the next coordinator") {
  const std::string long_name(1 << 20, 'E');
  const auto mark = fingerprint_of(
      raised(long_name, "",
             {"Traceback (most recent call last):", R"(  File "/me/train.py", line 7, in f)"}));
  CHECK(mark == long_name.substr(0, 120) + "@train.py:7");
  CHECK(
      fingerprint_of(raised("E", "", {R"(  File "/)" + long_name + R"(", line 7, in f)"})).size() ==
      200);
}

TEST_CASE("fingerprint: the exception and the innermost line of the user's program") {
  const auto failure = raised(
      "ValueError", "at step 875 of 0x7f12",
      {"Traceback (most recent call last):", R"(  File "/home/me/train.py", line 90, in <module>)",
       R"(  File "/home/me/model.py", line 7, in forward)",
       R"(  File "/usr/lib/python3/site-packages/torch/x.py", line 1, in y)",
       "ValueError: at step 875 of 0x7f12"});
  CHECK(fingerprint_of(failure) == "ValueError@model.py:7");
  auto again = failure;
  again.exception->message = "at step 876 of 0x7f98";
  CHECK(fingerprint_of(again) == fingerprint_of(failure));
}

TEST_CASE("fingerprint: of several tracebacks the last one counts") {
  CHECK(fingerprint_of(
            raised("KeyError", "x",
                   {"Traceback (most recent call last):", R"(  File "first.py", line 1, in a)",
                    "OSError: got over", "Traceback (most recent call last):",
                    R"([rank0]:   File "second.py", line 2, in b)"})) == "KeyError@second.py:2");
}

TEST_CASE("fingerprint: a signal, with the stack that faulthandler wrote if there is one") {
  CHECK(fingerprint_of(killed(SIGSEGV)) == "SIGSEGV");
  CHECK(fingerprint_of(killed(SIGSEGV, {"Fatal Python error: Segmentation fault",
                                        "Current thread 0x1 (most recent call first):",
                                        R"(  File "/home/me/ops.py", line 3 in call)",
                                        R"(  File "/home/me/train.py", line 9 in main)"})) ==
        "SIGSEGV@ops.py:3");
}

TEST_CASE("fingerprint: without an exception the exit code, and the error file's stack") {
  Failure plain;
  plain.status = {ExitStatus::How::Exited, 3};
  CHECK(fingerprint_of(plain) == "exit 3");
  auto recorded = raised("RuntimeError", "x");
  recorded.error_file.emplace();
  recorded.error_file->callstack =
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 5, in main\n";
  CHECK(fingerprint_of(recorded) == "RuntimeError@train.py:5");
}

TEST_CASE("cause classes: what ended a worker, for the restart policy") {
  CHECK(class_of(raised("ValueError", "x")) == CauseClass::Error);
  CHECK(class_of(raised("torch.OutOfMemoryError", "CUDA out of memory")) == CauseClass::Oom);
  CHECK(class_of(raised("RuntimeError", "CUDA error: uncorrectable ECC error encountered")) ==
        CauseClass::Gpu);
  CHECK(class_of(raised("RuntimeError", "CUDA error: device-side assert triggered")) ==
        CauseClass::Error);
  CHECK(class_of(raised("RuntimeError", "CUDA error: unspecified launch failure")) ==
        CauseClass::Error);
  const std::string nccl = "NCCL error in: x.cpp:1, unhandled ";
  CHECK(class_of(raised("torch.distributed.DistBackendError",
                        nccl + "system error, Last error: socketStartConnect: Connect to "
                               "10.0.0.2<42171> failed : Connection refused")) ==
        CauseClass::External);
  CHECK(class_of(raised("torch.distributed.DistBackendError",
                        nccl + "cuda error, Last error: Cuda failure 2 'out of memory'")) ==
        CauseClass::Oom);
  CHECK(class_of(raised("torch.distributed.DistBackendError",
                        nccl + "cuda error, Last error: Cuda failure 719 'x'")) == CauseClass::Gpu);
  CHECK(class_of(killed(SIGSEGV)) == CauseClass::Crash);
  CHECK(class_of(killed(SIGABRT, {"Watchdog caught collective operation timeout: x"})) ==
        CauseClass::Hang);
  auto by_kernel = killed(SIGKILL);
  by_kernel.out_of_memory = "the kernel ran out of memory";
  CHECK(class_of(by_kernel) == CauseClass::Oom);
  auto by_timer = killed(SIGKILL);
  by_timer.expired_timer = "expired timer 'x' after 2 s";
  CHECK(class_of(by_timer) == CauseClass::Timer);
}

TEST_CASE("cause classes: what a peer, the network, a service, a disk or a device can explain") {
  for (const auto& [type, message] : std::vector<std::pair<std::string, std::string>>{
           {"socket.gaierror", "[Errno -2] Name or service not known"},
           {"urllib.error.URLError",
            "<urlopen error [Errno -3] Temporary failure in name resolution>"},
           {"ConnectionRefusedError", "[Errno 111] Connection refused"},
           {"ConnectionResetError", "[Errno 104] Connection reset by peer"},
           {"BrokenPipeError", "[Errno 32] Broken pipe"},
           {"TimeoutError", "timed out"},
           {"requests.exceptions.ReadTimeout", "HTTPSConnectionPool(host='x', port=443)"},
           {"requests.exceptions.HTTPError", "503 Server Error: Service Unavailable for url: x"},
           {"urllib.error.HTTPError", "HTTP Error 503: Service Unavailable"},
           {"urllib.error.HTTPError", "HTTP Error 429: Too Many Requests"},
           {"http.client.RemoteDisconnected", "Remote end closed connection without response"},
           {"http.client.IncompleteRead", "IncompleteRead(1 bytes read, 8 more expected)"},
           {"botocore.exceptions.ClientError",
            "An error occurred (SlowDown) when calling GetObject"},
           {"google.api_core.exceptions.ServiceUnavailable", "503 x"},
           {"grpc.RpcError", "status = StatusCode.UNAVAILABLE"},
           {"OSError", "[Errno 5] Input/output error"},
           {"OSError", "[Errno 116] Stale file handle: '/nfs/shard'"},
           {"OSError", "[Errno 28] No space left on device"},
           {"OSError", "[Errno 19] No such device: '/dev/nvidia0'"},
           {"EOFError", ""},
           {"RuntimeError",
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed "
            "by peer [127.0.0.1]:20485"},
           {"RuntimeError", "[pair.cc:525] Read error [127.0.0.1]:9: Connection reset by peer"},
           {"torch.distributed.DistNetworkError", "failed to recv, got 0 bytes"},
           {"torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:1, remote process exited or there was a network error"}}) {
    CHECK_MESSAGE(class_of(raised(type, message)) == CauseClass::External, type, ": ", message);
  }
  for (const auto& [type, message] : std::vector<std::pair<std::string, std::string>>{
           {"FileNotFoundError", "[Errno 2] No such file or directory: 'x'"},
           {"urllib.error.HTTPError", "HTTP Error 404: Not Found"},
           {"ValueError", "the loss is nan"},
           {"AssertionError", ""},
           {"TypeError", "f() got an unexpected keyword argument 'timeout'"},
           {"torch.distributed.DistBackendError", "NCCL error in: x.cpp:1, invalid usage"}}) {
    CHECK_MESSAGE(class_of(raised(type, message)) == CauseClass::Error, type, ": ", message);
  }
}

TEST_CASE(
    "cause classes: the error that another one was made of counts, one that was got over not") {
  std::vector<std::string> lines{
      "Traceback (most recent call last):",
      R"(  File "/me/a.py", line 1, in f)",
      "[rank0]: OSError: [Errno 116] Stale file handle",
      "",
      "The above exception was the direct cause of the following exception:",
      "",
      "Traceback (most recent call last):",
      R"(  File "/me/a.py", line 2, in g)",
      "RuntimeError: cannot read the shard"};
  CHECK(class_of(raised("RuntimeError", "cannot read the shard", lines)) == CauseClass::External);
  auto during = lines;
  during[4] = "During handling of the above exception, another exception occurred:";
  CHECK(class_of(raised("NameError", "name 'x' is not defined", during)) == CauseClass::External);
  lines.insert(lines.end(), {"Traceback (most recent call last):",
                             R"(  File "/me/a.py", line 9, in h)", "ValueError: no"});
  CHECK(class_of(raised("ValueError", "no", lines)) == CauseClass::Error);
  CHECK(class_of(raised("ExceptionGroup", "2 sub-exceptions",
                        {"    | ConnectionResetError: [Errno 104] Connection reset by peer"})) ==
        CauseClass::External);
}

TEST_CASE("cause classes: a program without a traceback says it in its last line") {
  Failure exited;
  exited.status = {ExitStatus::How::Exited, 7};
  exited.last_lines = {"curl: (7) Failed to connect to data port 80: Connection refused", ""};
  CHECK(class_of(exited) == CauseClass::External);
  exited.last_lines.emplace_back("out of ideas");
  CHECK(class_of(exited) == CauseClass::Error);
  const std::vector<std::string> what{"terminate called after throwing an instance of 'x'",
                                      "  what():  connect: Connection timed out"};
  CHECK(class_of(killed(SIGABRT, what)) == CauseClass::External);
  CHECK(class_of(killed(SIGSEGV, what)) == CauseClass::Crash);
}

TEST_CASE("cause classes: of the code is what fails before the first step in the user's own line") {
  const std::vector<std::string> own{"Traceback (most recent call last):",
                                     R"(  File "/me/train.py", line 7, in <module>)"};
  auto in_library = own;
  in_library.emplace_back(R"(  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode)");
  auto failure = raised("KeyError", "'lr'", own);
  CHECK(class_of(failure) == CauseClass::Error);  // a script that tells no steps may have read data
  failure.page.emplace();  // as every worker has one under --restart-policy auto
  CHECK(class_of(failure) == CauseClass::Error);
  failure.page->importer = 4711;
  CHECK(class_of(failure) == CauseClass::Code);
  failure.last_lines = in_library;
  CHECK(class_of(failure) == CauseClass::Error);
  failure.last_lines = own, failure.page->step = 3;
  CHECK(class_of(failure) == CauseClass::Error);
  CHECK(class_of(raised("NameError", "name 'x' is not defined", own)) == CauseClass::Code);
  CHECK(class_of(raised("SyntaxError", "'(' was never closed",
                        {R"(  File "/me/train.py", line 3)", "    f(", "     ^"})) ==
        CauseClass::Code);
  CHECK(class_of(raised("ValueError", "x", own)) == CauseClass::Error);
}

}  // namespace elastrun::workers
