// SPDX-License-Identifier: Apache-2.0
// How fast does the agent tee? A child writes lines into its pipe as fast as it can; we are the
// agent that copies them to a file and, with a prefix, to the console. Prints one line:
//
//     tee_bench [MEGABYTES] [LINE_LENGTH] [FILE] > console
//
// Wall time contains the writer, which has a core of its own if there is one; CPU time is ours
// alone, with what the kernel does for us.
#include "core/system_clock.hpp"
#include "logs/stream_factory.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;

namespace {

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Never returns.
void write_lines(int fd, std::size_t bytes, std::size_t line_length) {
  std::string block;
  while (block.size() < (64u << 10)) block += std::string(line_length - 1, 'x') + "\n";
  for (std::size_t done = 0; done < bytes; done += block.size()) {
    std::string_view rest = block;
    while (!rest.empty()) {
      const ssize_t size = ::write(fd, rest.data(), rest.size());
      if (size <= 0) ::_exit(1);
      rest.remove_prefix(static_cast<std::size_t>(size));
    }
  }
  ::_exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t megabytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 200;
  const std::size_t line_length = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 100;
  const std::string directory =
      argc > 3 ? argv[3] : std::filesystem::temp_directory_path().string();
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  logs::Console console(loop.get_executor());
  files::BlockingCalls files(loop.get_executor());
  logs::StreamFactory factory(loop.get_executor(), *clock, console, files, false);
  logs::StreamSettings settings;
  settings.directory = directory;
  settings.tee = 1;
  settings.prefix = "[default0]:";
  auto streams = factory.make(settings);
  if (!streams) return fmt::print(stderr, "{}\n", streams.error().text), 1;

  const auto start = clock->now();
  const double cpu_before = cpu_seconds();
  const pid_t writer = ::fork();
  if (writer == 0) write_lines((*streams)->stdout_fd(), megabytes << 20, line_length);
  (*streams)->started();
  (*streams)->drain(false, [] {});
  loop.run();
  files.finish(std::chrono::minutes(1));
  console.finish();
  const double wall = std::chrono::duration<double>(clock->now() - start).count();
  const double cpu = cpu_seconds() - cpu_before;
  ::waitpid(writer, nullptr, 0);
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  std::filesystem::remove((*streams)->stdout_path());
  fmt::print(stderr,
             "tee of {} MiB, lines of {} bytes: {:.3f} s wall = {:.0f} MB/s, "
             "{:.3f} s CPU of the agent = {:.0f} MB/s, peak {} MB\n",
             megabytes, line_length, wall, static_cast<double>(megabytes << 20) / 1e6 / wall, cpu,
             static_cast<double>(megabytes << 20) / 1e6 / cpu, used.ru_maxrss / 1024);
  return 0;
}
