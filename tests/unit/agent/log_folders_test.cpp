// SPDX-License-Identifier: Apache-2.0
#include "agent/files/log_folders.hpp"

#include "support/fake_clock.hpp"
#include "support/logged_text.hpp"
#include "support/loop.hpp"

#include <doctest/doctest.h>
#include <filesystem>
#include <semaphore>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::agent;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A log directory behind a thread that stands still until thaw().
struct Frozen {
  fs::path base;
  boost::asio::io_context loop;
  test::FakeClock clock;
  files::BlockingCalls files{loop.get_executor()};
  std::shared_ptr<std::binary_semaphore> thawed = std::make_shared<std::binary_semaphore>(0);
  logs::Layout layout;
  std::vector<LogFolders::MaybePlace> channels;
  LogFolders folders{files, clock, layout,
                     2,     false, [this](auto place) { channels.push_back(std::move(place)); }};
  test::LoggedText log;
  std::string& said = log.text;
  rendezvous::Round round;

  Frozen() : base(make_base()), layout(*logs::Layout::plan(base.string(), "job")) {
    files.enqueue(std::make_shared<const std::string>("a log"), [thawed = thawed] {
      thawed->acquire();
      return files::BlockingCalls::Outcome{};
    });
  }
  ~Frozen() {
    thaw();
    files.finish(60s);
    fs::remove_all(base);
  }
  static fs::path make_base() {
    std::string name = fs::temp_directory_path() / "elastrun-test-XXXXXX";
    return ::mkdtemp(name.data());
  }
  void thaw() { thawed->release(); }
  /// Until the thread has nothing to do, with all that it answers.
  void settle() {
    test::run_until(loop, [&] { return files.idle(); });
  }
};

}  // namespace

TEST_CASE("log folders: a machine that was paused is no file system that does not answer") {
  Frozen frozen;
  bool done = false;
  frozen.folders.prepare(frozen.round, [&] { done = true; });
  frozen.clock.pause(2 * LogFolders::kTimeLimit);
  frozen.clock.advance(1s);
  CHECK_FALSE(done);
  frozen.thaw();
  frozen.settle();
  CHECK(done);
  CHECK(frozen.folders.take(frozen.round).has_value());
}

TEST_CASE("log folders: a file system that does not answer is said, and then the start fails") {
  Frozen frozen;
  int done = 0;
  frozen.folders.prepare(frozen.round, [&] { ++done; });
  CHECK(frozen.folders.is_unanswered());
  frozen.clock.advance(1s);
  CHECK(frozen.said.empty());
  frozen.clock.advance(1s);
  CHECK(frozen.said.contains("waiting for the temporary directory of this run"));
  frozen.clock.advance(LogFolders::kTimeLimit - 3s);
  CHECK(done == 0);
  frozen.clock.advance(1s);
  CHECK(done == 1);
  CHECK(frozen.folders.is_unanswered());
  const auto taken = frozen.folders.take(frozen.round);
  REQUIRE_FALSE(taken);
  CHECK(taken.error().code == Code::Io);
  CHECK(taken.error().text.contains("has not answered within 5 min 00 s"));
  CHECK(taken.error().text.contains("--log-dir"));
  frozen.thaw();  // what comes too late changes nothing
  frozen.settle();
  CHECK(done == 1);
  CHECK(frozen.channels.empty());
  CHECK(frozen.folders.is_unanswered());
}
