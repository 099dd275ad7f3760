// SPDX-License-Identifier: Apache-2.0
#include "agent/goodput/alert_command.hpp"

#include "process/shell.hpp"
#include "support/fake_clock.hpp"
#include "support/fake_launcher.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

namespace elastrun::agent {
namespace {

using namespace std::chrono_literals;
using process::ExitStatus;

/// Reads its input as soon as it starts.
struct Reading final : process::Launcher {
  explicit Reading(Clock& clock) : fake(clock) {}
  Result<std::unique_ptr<process::Child>> start(
      const process::LaunchRequest& request,
      std::function<void(const process::Exit&)> on_exit) override {
    char text[AlertCommand::kMostInput + 1];
    std::string all;
    for (ssize_t size; (size = ::read(request.stdin_fd, text, sizeof text)) > 0;) {
      all.append(text, static_cast<std::size_t>(size));  // up to the end of the input
    }
    inputs.push_back(all);
    return fake.start(request, std::move(on_exit));
  }
  test::FakeLauncher fake;
  std::vector<std::string> inputs;
};

struct AlertPlace {
  test::FakeClock clock;
  Reading launcher{clock};
  AlertCommand command{clock, launcher, {"notify", "a b"}, {"PATH=/bin"}};
};

}  // namespace

TEST_CASE("alert command: runs with the alert on its input, one at a time, then the latest") {
  AlertPlace place;
  const std::string first(AlertCommand::kMostInput, 'x');
  place.command.run(first);
  place.command.run("second");
  place.command.run("third");
  REQUIRE(place.launcher.inputs == std::vector{first});
  CHECK(place.launcher.fake[0].request.argv == process::shell_exec({"notify", "a b"}));
  CHECK(place.launcher.fake[0].request.environment == std::vector<std::string>{"PATH=/bin"});
  place.launcher.fake.end(0, ExitStatus::exited(1));
  place.clock.advance(0s);
  CHECK(place.launcher.inputs.back() == "third");
  CHECK(place.launcher.fake[0].destroyed);
  place.launcher.fake.end(1, ExitStatus::exited(0));
  place.clock.advance(0s);
  CHECK(place.launcher.fake.size() == 2);
  CHECK(place.clock.armed() == 0);
}

TEST_CASE("alert command: is killed after its time, and what waits has its turn") {
  AlertPlace place;
  place.command.run("one");
  place.command.run("two");
  place.clock.advance(AlertCommand::kTimeLimit - 1s);
  CHECK(place.launcher.fake[0].signals.empty());
  place.clock.advance(1s);
  place.launcher.fake.obey();
  place.clock.advance(0s);
  CHECK(place.launcher.inputs.back() == "two");
}

TEST_CASE("alert command: one that cannot be started costs a line of the log") {
  AlertPlace place;
  place.launcher.fake.fails_at = 0;
  place.command.run("one");
  CHECK(place.clock.armed() == 0);
  place.launcher.fake.fails_at.reset();
  place.command.run("two");
  CHECK(place.launcher.fake.alive() == 1);
}

}  // namespace elastrun::agent
