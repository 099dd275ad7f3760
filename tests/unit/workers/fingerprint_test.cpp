// SPDX-License-Identifier: Apache-2.0
#include "workers/fingerprint.hpp"

#include <csignal>
#include <doctest/doctest.h>

namespace elastrun::workers {
namespace {

using process::ExitStatus;
using spec::CauseClass;

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
        CauseClass::Error);
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

}  // namespace elastrun::workers
