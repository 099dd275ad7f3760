// SPDX-License-Identifier: Apache-2.0
#include "core/file_io.hpp"

#include "core/unique_fd.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

using namespace elastrun;
using Places = std::vector<std::string>;

TEST_CASE("read file: of one that has no size all is read, of one that is too long its beginning") {
  const auto whole = read_file("/proc/self/smaps");
  REQUIRE(whole);
  CHECK(whole->size() > 4096);
  CHECK(whole->ends_with('\n'));
  CHECK(read_file("/proc/self/smaps", 5000)->size() == 5000);
  CHECK(read_file("/proc/self/smaps", 0)->empty());
}

TEST_CASE("read file: why it cannot be read is told with its path") {
  const auto missing = read_file("/nowhere/at/all");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().text == "/nowhere/at/all: No such file or directory");
  CHECK(read_file("/proc").error().text == "/proc: Is a directory");
}

TEST_CASE("read file: of the kernel's files what can be read counts") {
  CHECK(read_kernel_file("/nowhere/at/all").empty());
  CHECK(read_kernel_file("/proc/self/stat").starts_with(std::to_string(::getpid()) + " ("));
}

TEST_CASE("search path: as execvp(3) looks for a program") {
  CHECK(program_candidates("python3", "/opt/bin::/usr/bin") ==
        Places{"/opt/bin/python3", "./python3", "/usr/bin/python3"});
  CHECK(program_candidates("python3", std::nullopt) == Places{"/bin/python3", "/usr/bin/python3"});
  CHECK(program_candidates("python3", "") == Places{"./python3"});
  CHECK(program_candidates("./run", "/opt/bin") == Places{"./run"});
}

namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    reader.reset(ends[0]);
    writer.reset(ends[1]);
    REQUIRE(::fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  }
  UniqueFd reader, writer;
};

}  // namespace

TEST_CASE("write all: a slow reader of a non-blocking pipe gets every byte") {
  Pipe pipe;
  const std::string text(1 << 20, 'x');
  std::string seen;
  std::thread reader([&] {
    std::array<char, 4096> some{};
    for (ssize_t got = 0; (got = ::read(pipe.reader.get(), some.data(), some.size())) > 0;) {
      seen.append(some.data(), static_cast<std::size_t>(got));
    }
  });
  const int number = write_all(pipe.writer.get(), text);
  pipe.writer.reset();
  reader.join();
  CHECK(number == 0);
  CHECK(seen.size() == text.size());
}

TEST_CASE("write all: a reader that has gone, and a full disk, are an errno") {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.reader.reset();
  CHECK(write_all(pipe.writer.get(), "text") == EPIPE);
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  CHECK(write_all(full.get(), "text") == ENOSPC);
  CHECK(write_all(-1, "text") == EBADF);
  CHECK(write_all(-1, "") == 0);
  std::signal(SIGPIPE, SIG_DFL);
}
