// SPDX-License-Identifier: Apache-2.0
#include "workers/diagnostics.hpp"

#include <csignal>
#include <doctest/doctest.h>
#include <utility>

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
