// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"
#include "core/unique_fd.hpp"
#include "logs/layout.hpp"
#include "support/logged_place.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::logs;
using namespace std::chrono_literals;

namespace {

struct Place : test::LoggedPlace {
  std::string file() const { return path + "/agent.log"; }
  void settle() {
    REQUIRE(calls.finish(60s));
    loop.restart();
    loop.poll();
  }
};

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

}  // namespace

TEST_CASE("AgentLog: takes lines from info on, while the console stays as it is") {
  Place place;
  {
    AgentLog agent_log(place.calls, place.file());
    log::info("area", "a fact");
    log::debug("area", "a detail");
    log::warning("area", "a warning");
    place.settle();
  }
  log::warning("area", "too late");
  place.settle();
  const auto text = place.content("agent.log");
  CHECK(count(text, "\n") == 2);
  CHECK(text.find("] a fact\n") != std::string::npos);
  CHECK(text.find("] a warning\n") != std::string::npos);
  CHECK(place.said.find("a fact") == std::string::npos);
}

TEST_CASE("AgentLog: begins a new file when one is full, and keeps two older ones") {
  Place place;
  AgentLog agent_log(place.calls, place.file());
  const std::string text(AgentLog::kSize / 2 - 100, 'x');
  for (int i = 0; i < 8; ++i) {
    log::info("area", "{} {}", i, text);
    place.settle();
  }
  CHECK(place.content("agent.log").find("] 6 x") != std::string::npos);
  CHECK(place.content("agent.1.log").find("] 4 x") != std::string::npos);
  CHECK(place.content("agent.2.log").find("] 2 x") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(place.path + "/agent.3.log"));
}

TEST_CASE(
    "AgentLog: while the file takes nothing a bounded number waits, and the loss is counted") {
  Place place;
  REQUIRE(::mkfifo(place.file().c_str(), 0600) == 0);  // nobody reads: opening it waits
  AgentLog agent_log(place.calls, place.file());
  for (int i = 0; i < AgentLog::kMostWaiting + 5; ++i) log::info("area", "line {}", i);
  const UniqueFd reader(::open(place.file().c_str(), O_RDONLY | O_NONBLOCK));
  REQUIRE(::fcntl(reader.get(), F_SETPIPE_SZ, 1 << 20) > 0);
  place.settle();
  log::info("area", "afterwards");
  place.settle();
  std::string text(1 << 20, '\0');
  text.resize(static_cast<std::size_t>(::read(reader.get(), text.data(), text.size())));
  CHECK(count(text, "\n") == AgentLog::kMostWaiting + 2);
  CHECK(text.find("] 5 lines are missing here: the file did not take them in time\n") !=
        std::string::npos);
  CHECK(text.ends_with("] afterwards\n"));
}

TEST_CASE("AgentLog: a file that cannot be written costs one warning") {
  Place place;
  AgentLog agent_log(place.calls, "/proc/nothing/agent.log");
  for (int i = 0; i < 3; ++i) log::info("area", "line {}", i);
  place.settle();
  log::info("area", "line 3");
  place.settle();
  CHECK(count(place.said, "The agent's log ends: ") == 1);
}
