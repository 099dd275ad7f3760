// SPDX-License-Identifier: Apache-2.0
#include "agent/files/run_files.hpp"

#include "core/system_clock.hpp"
#include "core/unique_fd.hpp"
#include "support/fake_run.hpp"
#include "support/logged_text.hpp"
#include "support/loop.hpp"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <thread>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;
using Stream = logs::Console::Stream;

rendezvous::RoundReady ready(int number) {
  rendezvous::RoundReady push;
  push.round.number = push.round.attempt = number;
  return push;
}

/// A log directory behind a thread that stands still, but for answer() and thaw().
struct Frozen : test::FakeRun {
  using Gate = std::shared_ptr<std::binary_semaphore>;
  fs::path base = make_base();
  files::BlockingCalls& files = threads[files::Lane::Folders];
  logs::Layout layout = *logs::Layout::plan(base.string(), "job");
  workers::Channel channel{io, nobody, [](auto, auto) {}, {}};
  RunFiles folders{*this, layout, channel, false, false};
  test::LoggedText log;
  std::string& said = log.text;
  Gate gate = freeze();
  std::string heard;
  bool answers = true;  // in time

  Frozen() { job.nproc_per_node = 2; }
  ~Frozen() override {
    thaw();
    files.finish(60s);
    channel.end(nullptr);
    fs::remove_all(base);
  }
  static fs::path make_base() {
    std::string name = fs::temp_directory_path() / "elastrun-test-XXXXXX";
    return ::mkdtemp(name.data());
  }
  Gate freeze() {
    auto next = std::make_shared<std::binary_semaphore>(0);
    files.enqueue(std::make_shared<const std::string>("a log"), [next] {
      next->acquire();
      return files::BlockingCalls::Outcome{};
    });
    return next;
  }
  void post(Fact fact) override {
    const auto& one = std::get<Pushed>(fact).push;
    if (const auto* round = std::get_if<rendezvous::RoundReady>(&one)) {
      CHECK(was_made(static_cast<int>(round->round.number)) == answers);
      heard += std::to_string(round->round.number);
    } else if (const auto* progress = std::get_if<rendezvous::Progress>(&one)) {
      heard += progress->text;
    } else {
      heard += std::holds_alternative<rendezvous::Restart>(one) ? 'R'
               : std::holds_alternative<rendezvous::Done>(one)  ? 'D'
                                                                : 'L';
    }
  }
  void push(rendezvous::Push one) { folders.pass(std::move(one)); }
  bool was_made(int attempt) const {
    return fs::exists(layout.run_directory() + "/attempt_" + std::to_string(attempt));
  }
  /// It answers what it was asked so far, and no more.
  void answer() {
    bool told = false;
    files.make(
        "a mark", [] { return 0; }, [&told](int) { told = true; });
    const auto open = std::exchange(gate, freeze());
    open->release();
    test::run_until(loop, [&told] { return told; });
  }
  void thaw() { gate->release(); }
  /// Until the thread has nothing to do, with all that it answers.
  void settle() {
    test::run_until(loop, [&] { return files.idle(); });
  }
};

TEST_CASE("log folders: a machine that was paused is no file system that does not answer") {
  Frozen frozen;
  frozen.push(ready(1));
  frozen.time.pause(2 * RunFiles::kTimeLimit);
  frozen.time.advance(1s);
  CHECK(frozen.heard.empty());
  frozen.answer();
  CHECK(frozen.heard == "1");
  CHECK(frozen.folders.take(ready(1).round).has_value());
}

TEST_CASE("log folders: a file system that does not answer is said, and then the start fails") {
  Frozen frozen;
  frozen.answers = false;
  frozen.push(ready(0));
  CHECK(frozen.folders.is_unanswered());
  frozen.time.advance(1s);
  CHECK(frozen.said.empty());
  frozen.time.advance(1s);
  CHECK(frozen.said.contains("waiting for the temporary directory of this run"));
  frozen.time.advance(RunFiles::kTimeLimit - 3s);
  CHECK(frozen.heard.empty());
  frozen.time.advance(1s);
  CHECK(frozen.heard == "0");
  CHECK(frozen.folders.is_unanswered());
  const auto taken = frozen.folders.take({});
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == Code::Io);
  CHECK(taken.error().text.contains("has not answered within 5 min 00 s"));
  CHECK(taken.error().text.contains("--log-dir"));
  frozen.thaw();  // what comes too late changes nothing
  frozen.settle();
  CHECK(frozen.heard == "0");
  CHECK(frozen.channel.path().empty());
  CHECK(frozen.folders.is_unanswered());
}

TEST_CASE("log folders: the end of the job waits for no directories, and its round is never told") {
  for (const bool lost : {false, true}) {
    Frozen frozen;
    frozen.push(ready(1));
    frozen.push(rendezvous::Progress{"p"});
    CHECK(frozen.heard == "");
    lost ? frozen.push(rendezvous::Lost{}) : frozen.push(rendezvous::Done{});
    CHECK(frozen.heard == (lost ? "pL" : "pD"));
    frozen.answer();
    CHECK(frozen.heard == (lost ? "pL" : "pD"));
  }
}

TEST_CASE("log folders: a restart of another role waits behind the round, which goes on") {
  Frozen frozen;
  frozen.push(ready(1));
  rendezvous::Restart restart;
  restart.role = "another";
  frozen.push(restart);
  CHECK(frozen.heard == "");
  frozen.answer();
  CHECK(frozen.heard == "1R");
}

TEST_CASE("log folders: a round that breaks up before it is prepared is dropped for the next one") {
  Frozen frozen;
  frozen.push(ready(1));
  frozen.push(rendezvous::Restart{});
  CHECK(frozen.heard == "R");
  frozen.push(rendezvous::Progress{"p"});
  SUBCASE("which comes first") {
    frozen.push(ready(2));
    SUBCASE("and may break up as well") {
      frozen.push(rendezvous::Restart{});
      frozen.push(ready(3));
      frozen.answer();
      frozen.answer();
      CHECK(frozen.heard == "RpR3");
      CHECK_FALSE(frozen.was_made(2));
      return;
    }
    frozen.answer();
  }
  SUBCASE("or after the answer") {
    frozen.answer();
    CHECK(frozen.heard == "Rp");
    frozen.push(ready(2));
  }
  CHECK(frozen.heard == "Rp");
  frozen.answer();
  frozen.push(rendezvous::Restart{});
  CHECK(frozen.heard == "Rp2R");
}

TEST_CASE("log folders: whatever comes passes in order, and no round that is not prepared") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Frozen frozen;
    std::string in;
    for (int step = 0, rounds = 0; step < 40; ++step) {
      if (random() % 3 == 0) {
        frozen.answer();
      } else if (rounds < 9 && random() % 2 == 0) {
        in += std::to_string(++rounds);
        frozen.push(ready(rounds));
      } else {
        const std::string text(1, static_cast<char>('a' + random() % 10));
        in += text;
        frozen.push(rendezvous::Progress{text});
      }
      CHECK(in.starts_with(frozen.heard));
    }
    for (int left = 0; left < 10; ++left) frozen.answer();
    CHECK(in == frozen.heard);
  }
}

/// A write that comes back when the semaphore is released.
std::shared_ptr<std::binary_semaphore> freeze(files::BlockingCalls& files) {
  const auto thawed = std::make_shared<std::binary_semaphore>(0);
  files.enqueue(std::make_shared<const std::string>("/frozen/log"), [thawed] {
    thawed->acquire();
    return files::BlockingCalls::Outcome{};
  });
  return thawed;
}

/// What is waited for at the end of a run: a console that takes all, two threads for files.
struct LastFiles {
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  UniqueFd null{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  logs::Console console{loop.get_executor(), null.get(), null.get()};
  files::BlockingCalls logs{loop.get_executor()}, reports{loop.get_executor()};
  test::LoggedText log;
};

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
  LastFiles run;
  const auto thawed = freeze(run.logs);
  agent::LastWrites last(run.loop, *run.clock, run.console, {&run.logs, &run.reports}, 60s);
  boost::asio::post(run.loop, [&] { last.give_up_now(); });
  last.wait(false);
  bool reported = false;
  run.reports.make(
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
  LastFiles run;
  const auto thawed = freeze(run.logs);
  agent::LastWrites last(run.loop, *run.clock, run.console, {&run.logs, &run.reports}, 60s);
  last.lose({&run.logs});
  CHECK(run.log.text.contains("/frozen/log took nothing"));
  run.log.text.clear();
  last.lose({&run.reports});  // has nothing to do
  CHECK(run.log.text.empty());
  bool reported = false;
  run.reports.make(
      "report", [] { return 1; }, [&](int) { reported = true; });
  last.wait(true);
  CHECK(reported);
  thawed->release();
}

TEST_CASE("last writes: a signal that came before the wait limits it") {
  LastFiles run;
  const auto thawed = freeze(run.logs);
  agent::LastWrites last(run.loop, *run.clock, run.console, {&run.logs}, 1s);
  last.shorten();
  CHECK(run.log.text.empty());
  last.wait(false);
  CHECK(run.log.text.contains("what /frozen/log has not taken in time is lost"));
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
  LastFiles run;
  const auto thawed = freeze(run.logs);
  agent::LastWrites last(run.loop, *run.clock, run.console, {&run.logs}, 60s);
  boost::asio::post(run.loop, [&] { last.give_up_now(); });
  last.wait(true);

  thawed->release();
  bool whole = false;
  const auto end = run.clock->make_alarm();
  end->arm(run.clock->now() + 200ms, [&whole] { whole = true; });
  run.loop.restart();
  run.loop.run();
  CHECK(whole);
}

TEST_CASE("last writes: an answer that waits to be given has its turn") {
  LastFiles run;
  bool told = false;
  run.logs.enqueue(std::make_shared<const std::string>("/full/log"), [&told] {
    return files::BlockingCalls::Outcome{[&told] { told = true; }, false};
  });
  while (run.logs.returned() == 0 || !run.logs.busy_with().empty()) std::this_thread::yield();
  CHECK_FALSE(run.logs.idle());
  agent::LastWrites last(run.loop, *run.clock, run.console, {&run.logs}, 60s);
  last.wait(true);
  CHECK(told);
  CHECK(run.logs.idle());
}

/// Its visitors go when they have been looked at so often.
struct VisitedStore final : RoundStore {
  Result<std::uint16_t> prepare() override { return 1; }
  void begin(const rendezvous::Round&) override {}
  bool serves_workers() const override { return true; }
  bool serves_others() const override { return shared; }
  void rounds_are_over() override { over = true; }
  std::size_t visitors() const override {
    if (on_look) on_look();
    return looks-- > 0 ? 2 : 0;
  }
  bool shared = true, over = false;
  mutable int looks = 3;
  std::function<void()> on_look;
};

struct Stay {
  boost::asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  VisitedStore store;
  StoreDrain visitors{loop, *clock};
};

TEST_CASE("store drain: it stays until they have hung up, and lets the loop serve them") {
  Stay end;
  bool served = false;
  boost::asio::post(end.loop, [&served] { served = true; });
  end.visitors.wait(end.store, 10min);
  CHECK(end.store.looks < 0);
  CHECK(end.store.over);
  CHECK(served);
  CHECK(!end.visitors.waiting());
}

TEST_CASE("store drain: it does not stay after their time, or if all work was its own") {
  Stay end;
  end.store.looks = 1'000'000;
  SUBCASE("no time") {
    end.visitors.wait(end.store, 0s);
    CHECK(end.store.looks == 1'000'000);
  }
  SUBCASE("their time is over") {
    end.visitors.wait(end.store, 50ms);
    CHECK(end.store.over);
  }
  SUBCASE("nobody else's") {
    end.store.shared = false;
    end.visitors.wait(end.store, 10min);
  }
  CHECK(!end.visitors.waiting());
}

TEST_CASE("store drain: a second signal ends that at once, the first does not") {
  Stay end;
  end.store.looks = 1'000'000;
  int looks = 0;
  end.store.on_look = [&] {
    if (++looks == 3) end.visitors.hear_signal(false);
    if (looks == 8) end.visitors.hear_signal(true);
  };
  end.visitors.wait(end.store, 10min);
  CHECK(looks == 8);
}

}  // namespace
}  // namespace elastrun::agent
