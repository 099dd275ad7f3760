// SPDX-License-Identifier: Apache-2.0
#include "agent/files/last_writes.hpp"

#include "core/system_clock.hpp"
#include "core/unique_fd.hpp"
#include "support/logged_text.hpp"

#include <atomic>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <memory>
#include <semaphore>
#include <thread>
#include <unistd.h>

using namespace elastrun;
using Stream = logs::Console::Stream;
using namespace std::chrono_literals;

namespace {

/// A write that comes back when the semaphore is released.
std::shared_ptr<std::binary_semaphore> freeze(files::BlockingCalls& files) {
  const auto thawed = std::make_shared<std::binary_semaphore>(0);
  files.enqueue(std::make_shared<const std::string>("/frozen/log"), [thawed] {
    thawed->acquire();
    return files::BlockingCalls::Outcome{};
  });
  return thawed;
}

}  // namespace

// Fails about once in a thousand of its rounds where the wake-up can be missed.
TEST_CASE("last writes: a console that is a file may be done at any moment") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd file(::open("/tmp", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  REQUIRE(file);
  logs::Console console(loop.get_executor(), file.get(), file.get());
  const auto late = clock->make_alarm();
  bool stuck = false;
  for (int i = 0; i < 20000 && !stuck; ++i) {
    agent::LastWrites last(loop, *clock, console, {}, 60s);
    console.write(Stream::Out, "a line\n");
    for (int spin = 0; spin < i % 400; ++spin) (void)console.idle();
    late->arm(clock->now() + 10s, [&] {
      stuck = true;
      last.give_up_now();
    });
    last.wait(true);
  }
  CHECK_FALSE(stuck);
}

TEST_CASE("last writes: one thread that is given up does not cost what another is given later") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  logs::Console console(loop.get_executor(), null.get(), null.get());
  files::BlockingCalls logs(loop.get_executor()), reports(loop.get_executor());
  const auto thawed = freeze(logs);
  agent::LastWrites last(loop, *clock, console, {&logs, &reports}, 60s);
  boost::asio::post(loop, [&] { last.give_up_now(); });
  last.wait(false);
  bool reported = false;
  reports.make(
      "report",
      [] {
        std::this_thread::sleep_for(100ms);
        return 1;
      },
      [&](int) { reported = true; });
  last.wait(true);
  CHECK(reported);
  thawed->release();
}

TEST_CASE("last writes: who is known not to answer is not waited for; the others are") {
  test::LoggedText log;
  std::string& said = log.text;
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  logs::Console console(loop.get_executor(), null.get(), null.get());
  files::BlockingCalls logs(loop.get_executor()), reports(loop.get_executor());
  const auto thawed = freeze(logs);
  agent::LastWrites last(loop, *clock, console, {&logs, &reports}, 60s);
  last.lose({&logs});
  CHECK(said.contains("/frozen/log took nothing"));
  said.clear();
  last.lose({&reports});  // has nothing to do
  CHECK(said.empty());
  bool reported = false;
  reports.make(
      "report", [] { return 1; }, [&](int) { reported = true; });
  last.wait(true);
  CHECK(reported);
  thawed->release();
}

TEST_CASE("last writes: a signal that came before the wait limits it") {
  test::LoggedText log;
  std::string& said = log.text;
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  logs::Console console(loop.get_executor(), null.get(), null.get());
  files::BlockingCalls logs(loop.get_executor());
  const auto thawed = freeze(logs);
  agent::LastWrites last(loop, *clock, console, {&logs}, 1s);
  last.shorten();
  CHECK(said.empty());
  last.wait(false);
  CHECK(said.contains("what /frozen/log has not taken in time is lost"));
  thawed->release();
}

TEST_CASE("last writes: a thread that is done at any moment ends the wait, and its answer counts") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  logs::Console console(loop.get_executor(), writer.get(), writer.get());
  files::BlockingCalls logs(loop.get_executor()), reports(loop.get_executor());
  agent::LastWrites last(loop, *clock, console, {&logs, &reports}, 60s);
  for (int round = 0; round < 2000; ++round) {
    // The threads end while the loop looks at them, sooner or later.
    int answers = 0;
    for (auto* calls : {&logs, &reports}) {
      calls->make(
          "file",
          [round] {
            for (int i = 0; i < round % 50; ++i) std::this_thread::yield();
            return 0;
          },
          [&](int) {
            ++answers;
            console.write(Stream::Out, "said by an answer\n");
          });
    }
    last.wait(true);
    REQUIRE(answers == 2);
    char text[100];
    REQUIRE(::read(reader.get(), text, sizeof text) > 0);
  }
}

TEST_CASE("last writes: an answer of what was given up does not end what the loop runs for next") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  files::BlockingCalls files(loop.get_executor());
  const auto thawed = freeze(files);
  logs::Console console(loop.get_executor(), null.get(), null.get());
  agent::LastWrites last(loop, *clock, console, {&files}, 60s);
  boost::asio::post(loop, [&] { last.give_up_now(); });
  last.wait(true);

  thawed->release();
  bool whole = false;
  const auto end = clock->make_alarm();
  end->arm(clock->now() + 200ms, [&whole] { whole = true; });
  loop.restart();
  loop.run();
  CHECK(whole);
}

TEST_CASE("last writes: an answer that waits to be given has its turn") {
  boost::asio::io_context loop;
  const auto clock = make_system_clock(loop.get_executor());
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  files::BlockingCalls files(loop.get_executor());
  bool told = false;
  files.enqueue(std::make_shared<const std::string>("/full/log"), [&told] {
    return files::BlockingCalls::Outcome{[&told] { told = true; }, false};
  });
  while (files.returned() == 0 || !files.busy_with().empty()) std::this_thread::yield();
  CHECK_FALSE(files.idle());
  logs::Console console(loop.get_executor(), null.get(), null.get());
  agent::LastWrites last(loop, *clock, console, {&files}, 60s);
  last.wait(true);
  CHECK(told);
  CHECK(files.idle());
}
