// SPDX-License-Identifier: Apache-2.0
// What a coordinator that stands alone knows of jobs of which nobody is there.
#include "rendezvous/coordinator/store_state_file.hpp"

#include "support/fake_clock.hpp"
#include "support/fake_files.hpp"
#include "unit/rendezvous/timeless.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// A coordinator that stands alone, for which time passes only when a test says so.
struct Store final : private CoordinatorOwner {
  explicit Store(std::map<std::string, WorldRecord> known = {}) {
    CoordinatorSettings settings;
    settings.stand_alone = true;
    settings.known_worlds = std::move(known);
    settings.owner = this;
    auto opened = Coordinator::open(network.loop, *network.clock, sealer, {}, settings);
    REQUIRE(opened.has_value());
    host = std::move(*opened);
  }
  /// One that works alone.
  std::unique_ptr<TestAgent> agent(const std::string& run_id) {
    SessionSettings settings;
    settings.run_id = run_id;
    settings.rules = rules_for(1, 1);
    auto made = agent_at(network, host->port(), std::move(settings), sealer);
    made->join();
    pass(2s);
    made->round();
    return made;
  }
  void job_over(const std::string& run_id) override { over.push_back(run_id); }
  void pass(Duration time) { network.pass(time, 20); }

  TimelessNetwork network;
  std::shared_ptr<const net::Sealer> sealer = net::make_sealer("");
  std::vector<std::string> over;
  std::unique_ptr<Coordinator> host;
};

}  // namespace

TEST_CASE("store state file: one of which nobody has come is forgotten when it cannot be at work") {
  Store store({{"old", {{1, 3}, 2, "", 0, 10s}}});
  store.pass(9s);
  CHECK(store.over.empty());
  store.pass(2s);
  CHECK_MESSAGE(store.over == std::vector<std::string>{"old"}, "also if no other job comes");
  auto agent = store.agent("new");
  CHECK(store.over == std::vector<std::string>{"old"});
}

TEST_CASE("store state file: one whose last agent was lost is forgotten, too") {
  Store store;
  auto agent = store.agent("job");
  agent.reset();  // without a goodbye, which says nothing of its group
  store.pass(1s);
  store.pass(120s);
  CHECK(store.over == std::vector<std::string>{"job"});
}

TEST_CASE("store state file: a job that has failed is known until its last agent has gone") {
  Store store;
  auto agent = store.agent("job");
  agent->fail(1);
  store.pass(1s);
  agent->hear<Done>();
  CHECK(store.over.empty());
  agent->close();
  store.pass(1s);
  CHECK(store.over == std::vector<std::string>{"job"});
}

TEST_CASE("store state file: no job waits for a disk that does not answer") {
  elastrun::test::FakeFiles folder;
  const std::string path = folder.root() + "/state";
  boost::asio::io_context loop;
  elastrun::test::FakeClock clock;
  auto known = StoreStateFile::open(loop, clock, path);
  REQUIRE(known.has_value());
  CoordinatorSettings settings;
  (*known)->attach(settings);
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);  // whose reader does not come
  int recorded = 0;
  (*known)->record_world("job", {{1, 1}, 2, "a", 29000}, [&recorded] { ++recorded; });
  const auto pass = [&](Duration time) {
    loop.restart();
    loop.run_for(20ms);
    clock.advance(time);
  };
  pass(4900ms);
  CHECK(recorded == 0);
  pass(100ms);
  CHECK(recorded == 1);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  for (int i = 0; i < 20; ++i) pass(0s);
  CHECK(recorded == 1);
  ::close(reader);
}
