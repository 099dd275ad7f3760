// SPDX-License-Identifier: Apache-2.0
#include "logs/console.hpp"

#include "core/log.hpp"
#include "plumbing.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <random>
#include <string>

using namespace elastrun;
using namespace elastrun::logs;
using namespace plumbing;
using namespace std::chrono_literals;
using Stream = Console::Stream;

namespace {

bool is_blocking(int fd) {
  return (::fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
}

/// Reads `fd` while the loop turns, until `size` bytes have come.
std::string read_all(boost::asio::io_context& loop, int fd, std::size_t size) {
  std::string text;
  run_until(loop, [&] {
    text += take(fd);
    return text.size() >= size;
  });
  return text;
}

std::string many_lines(std::size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) text += std::to_string(i) + "\n";
  return text;
}

/// A status line on a terminal that knows no colours.
struct Shown {
  Shown() {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
    line.emplace(clock, console, true);
  }
  ~Shown() { ::unsetenv("NO_COLOR"); }
  boost::asio::io_context loop;
  FakeClock clock;
  Terminal terminal;
  Console console{loop.get_executor(), terminal.side.get(), copy_of(terminal.side.get()).release()};
  std::optional<StatusLine> line;  // reads the environment
};

}  // namespace

TEST_CASE(
    "console: a slow reader gets everything in order, and the file stays blocking for others") {
  boost::asio::io_context loop;
  Pipe out, err;
  Console console(loop.get_executor(), out.writer.get(), err.writer.get());
  console.take_log_lines();
  const std::string text = many_lines(700 << 10);
  for (std::size_t i = 0; i < text.size(); i += 1000) {
    console.write(Stream::Out, std::string_view(text).substr(i, 1000));
  }
  CHECK(is_blocking(out.writer.get()));
  CHECK(console.outlet(Stream::Out).congested());
  bool clear = false;
  console.outlet(Stream::Out).when_clear([&] { clear = true; });
  run_ready(loop);
  CHECK_FALSE(clear);
  CHECK(read_all(loop, out.reader.get(), text.size()) == text);
  CHECK(clear);
  CHECK(console.outlet(Stream::Out).lost() == 0);
  run_ready(loop);
  console.write(Stream::Out, "more\n");
  CHECK(take(err.reader.get()).empty());  // nothing was lost, so nothing is said
  loop.restart();
  CHECK(loop.run_one() == 0);  // nothing is watched any more: an idle console wakes nobody
}

TEST_CASE("console: two streams in one pipe are one queue, lines are not mixed") {
  boost::asio::io_context loop;
  Pipe both;
  Console console(loop.get_executor(), both.writer.get(), copy_of(both.writer.get()).release());
  CHECK(console.one_place());
  const std::string wide(100 << 10, 'x');
  console.write(Stream::Out, wide + "\n");
  console.write(Stream::Err, "short\n");
  CHECK(read_all(loop, both.reader.get(), wide.size() + 7) == wide + "\nshort\n");
}

TEST_CASE("console: a reader that goes while output waits frees those who wait") {
  ignore_console_signals();
  boost::asio::io_context loop;
  Pipe out, err;
  Console console(loop.get_executor(), out.writer.get(), err.writer.get());
  console.write(Stream::Out, std::string(1 << 20, 'x'));
  bool clear = false;
  console.outlet(Stream::Out).when_clear([&] { clear = true; });
  out.reader.reset();
  run_until(loop, [&] { return clear; });
  CHECK(console.outlet(Stream::Out).lost() > 0);
}

TEST_CASE("console: a reader that never reads cannot make the agent grow without bound") {
  boost::asio::io_context loop;
  Pipe out, err;
  Console console(loop.get_executor(), out.writer.get(), err.writer.get());
  const std::string megabyte(1 << 20, 'x');
  for (int i = 0; i < 10; ++i) console.write(Stream::Out, megabyte);
  CHECK(console.outlet(Stream::Out).lost() > (4u << 20));
  console.finish(1ms);  // gives up after no progress, instead of waiting for ever
  CHECK(console.outlet(Stream::Out).lost() > (9u << 20));
}

TEST_CASE_FIXTURE(
    Shown, "status: it is drawn on change and once a second, and costs nothing when hidden") {
  REQUIRE(line->is_enabled());
  CHECK(clock.armed() == 0);
  StatusFacts status{.phase = "running", .workers_up = 2, .workers = 2};
  line->show(status);
  CHECK(take(terminal.screen.get()) == "[running] 2/2 workers | 0:00");
  clock.advance(999ms);
  CHECK(take(terminal.screen.get()).empty());
  clock.advance(1ms);
  CHECK(take(terminal.screen.get()) == "\r\x1b[K[running] 2/2 workers | 0:01");
  clock.advance(2s);
  take(terminal.screen.get());
  line->hide();
  CHECK(take(terminal.screen.get()) == "\r\x1b[K");
  CHECK(clock.armed() == 0);
  StatusLine off(clock, console, false);
  off.show(status);
  CHECK(take(terminal.screen.get()).empty());
  CHECK(clock.armed() == 0);
}

TEST_CASE_FIXTURE(Shown, "status: thousands of steps a second are drawn four times a second") {
  StatusFacts status{.phase = "running", .workers_up = 1, .workers = 1};
  line->show(status);
  take(terminal.screen.get());
  for (int step = 1; step <= 1000; ++step) {
    clock.advance(1ms);
    status.detail = "step " + std::to_string(step);
    line->show(status);
  }
  const std::string drawn = take(terminal.screen.get());
  CHECK(std::ranges::count(drawn, '[') >= 2 * 4);  // each with one more in the clearing before it
  CHECK(std::ranges::count(drawn, '[') <= 2 * 6);
  clock.advance(250ms);  // the last one is not forgotten
  CHECK(take(terminal.screen.get()) == "\r\x1b[K[running] 1/1 workers | step 1000 | 0:01");
  status.phase = "stopping";
  line->show(status);
  CHECK(take(terminal.screen.get()) == "\r\x1b[K[stopping] 1/1 workers | step 1000 | 0:01");
  line->hide();
  CHECK(clock.armed() == 0);
}

TEST_CASE("status: what matters least is left out first, and the line never wraps") {
  const StatusFacts status{.phase = "running",
                           .restarts = 1,
                           .max_restarts = 3,
                           .workers_up = 7,
                           .workers = 8,
                           .nodes = 3,
                           .detail = "step 1200, grüße"};
  CHECK(status_text(status, 3725s, 120, false) ==
        "[running] 7/8 workers | 3 nodes | 1/3 restarts | step 1200, gr????e | "
        "1:02:05");
  CHECK(status_text(status, 65s, 50, false) == "[running] 7/8 workers | 3 nodes | 1:05");
  for (std::size_t width = 1; width < 130; ++width) {
    CAPTURE(width);
    CHECK(status_text(status, 65s, width, false).size() < std::max<std::size_t>(width, 3));
  }
  CHECK(status_text(status, 65s, 20, true) == "[\x1b[1;36mrunning\x1b[0m] 1:05");
}

TEST_CASE("status: a long detail is cut short where enough of it fits") {
  const StatusFacts status{.phase = "waiting for other nodes",
                           .workers = 8,
                           .detail = "2 of 4 nodes are here; node-17 and node-18 are missing"};
  CHECK(status_text(status, 65s, 80, false) ==
        "[waiting for other nodes] 0/8 workers | 2 of 4 nodes are here; node-17.. | 1:05");
  CHECK(status_text(status, 65s, 79, false).size() == 78);
  CHECK(status_text(status, 65s, 60, false) == "[waiting for other nodes] 0/8 workers | 1:05");
}

TEST_CASE("status: a terminal that is not ours at the moment is not painted on, nor cleared") {
  ::setenv("TERM", "xterm", 1);
  boost::asio::io_context loop;
  Terminal terminal;
  Pipe out;
  Console console(loop.get_executor(), out.writer.get(), terminal.side.get());
  bool ours = false;
  console.draw_status_while([&] { return ours; });
  console.set_status("S1");
  CHECK(take(terminal.screen.get()).empty());
  ours = true;
  console.set_status("S2");
  CHECK(take(terminal.screen.get()) == "S2");
  ours = false;  // Ctrl+Z, bg: the shell's prompt is in that line now
  console.set_status("S3");
  console.write(Stream::Err, "text\n");
  console.set_status({});
  CHECK(take(terminal.screen.get()) == "text\r\n");
}

namespace {

std::uint64_t lines_in(std::string_view text) {
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

/// A queue behind a Lag, as Outlet has it, with a reader that takes what the schedule says.
struct Queue {
  Lag lag;
  std::size_t waiting = 0;
  std::uint64_t offered = 0, taken = 0, told = 0;

  void offer(const std::string& lines) {
    const auto size = lag.take_filed(lines, waiting);
    REQUIRE(size <= lines.size());
    REQUIRE((size == 0 || lines[size - 1] == '\n'));  // whole lines only
    offered += lines_in(lines);
    taken += lines_in(std::string_view(lines).substr(0, size));
    waiting += size;
  }
  void tell(bool now) {
    const auto gap = lag.gap_to_tell(waiting, now);
    CHECK(gap.lost == 0);
    told += gap.filed;
  }
};

}  // namespace

TEST_CASE("lag: each line is taken or counted, once, and what waits is bounded") {
  for (unsigned seed = 0; seed < 25; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto upto = [&](std::size_t most) {
      return std::uniform_int_distribution<std::size_t>(0, most)(random);
    };
    Queue queue;
    for (int step = 0; step < 100; ++step) {
      switch (upto(4)) {
        case 0:
          queue.waiting -= std::min(queue.waiting, upto(600'000));
          queue.tell(false);
          break;
        case 1:
          if (upto(9) == 0) queue.lag.skip();
          if (upto(9) == 0) queue.tell(true);
          break;
        default: {
          std::string lines;
          for (auto count = upto(40); count > 0; --count) {
            lines += std::string(upto(5000), 'x') + "\n";
          }
          queue.offer(lines);
        }
      }
      REQUIRE(queue.waiting <= Lag::kFiled);
      REQUIRE(queue.taken + queue.told <= queue.offered);
    }
    queue.waiting = 0;
    queue.tell(false);
    CHECK(queue.taken + queue.told == queue.offered);
    CHECK_FALSE(queue.lag.skipping());
    queue.offer("seen\n");
    CHECK(queue.waiting == 5);
  }
}

TEST_CASE("lag: after the first line left out all are, until the reader has caught up") {
  Lag lag;
  const std::string line = std::string(999, 'x') + "\n";
  CHECK(lag.take_filed(line + line, Lag::kFiled - 1500) == 1000);
  CHECK(lag.take_filed("short\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(Lag::kCaughtUp + 1, false).empty());
  CHECK(lag.gap_to_tell(Lag::kCaughtUp, false).filed == 2);
  CHECK(lag.gap_to_tell(0, false).empty());
  CHECK(lag.take_filed("short\n", 0) == 6);
}

TEST_CASE("lag: a gap told early does not end it") {
  Lag lag;
  lag.skip();
  CHECK(lag.take_filed("a\nb\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(Lag::kFiled / 2, true).filed == 2);
  CHECK(lag.skipping());
  CHECK(lag.take_filed("c\n", Lag::kFiled / 2) == 0);
  CHECK(lag.gap_to_tell(0, false).filed == 1);
}

TEST_CASE("lag: the agent's own words have room when workers have none, and the verdict always") {
  Lag lag;
  const std::string text(2 << 20, 'x');
  CHECK(lag.take(text, Lag::kOutput, Lag::Weight::Output) == 0);
  CHECK(lag.take("a line\n", Lag::kOutput, Lag::Weight::Own) == 7);
  CHECK(lag.take(text, Lag::kOwn - 10, Lag::Weight::Own) == 10);
  CHECK(lag.take(text, Lag::kOwn + 10, Lag::Weight::Verdict) == text.size());
  CHECK(lag.gap_to_tell(0, false).lost == 2);
}
