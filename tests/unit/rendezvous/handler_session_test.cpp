// SPDX-License-Identifier: Apache-2.0
#include "core/system_clock.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/make_session.hpp"
#include "store/blocking_store.hpp"
#include "support/loop.hpp"
#include "support/scratch.hpp"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <thread>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;

namespace {

/// Gives what the test says, and counts what is asked of it.
struct Scripted final : RendezvousHandler {
  std::string get_backend() const override { return "scripted"; }
  std::string get_run_id() const override { return "run"; }
  Result<RendezvousInfo> next_rendezvous() override {
    caller = std::this_thread::get_id();
    return next();
  }
  bool use_agent_store() const override { return served; }
  int num_nodes_waiting() override { return waiting; }
  bool shutdown() override {
    ++shutdowns;
    return true;
  }
  std::function<Result<RendezvousInfo>()> next = [] { return RendezvousInfo{}; };
  std::atomic<int> waiting = 0, shutdowns = 0;
  bool served = false;
  std::thread::id caller;
};

spec::JobSpec job_with(int max_restarts, Duration barrier = 300s) {
  spec::JobSpec job;
  job.max_restarts = max_restarts;
  job.monitor_interval = 0.001;
  job.exit_barrier_timeout = barrier;
  return job;
}

/// One agent's end, on a loop of its own.
struct OneNode {
  explicit OneNode(spec::JobSpec given = {}, std::string address = {},
                   BootstrapStoreInfo master = {})
      : job(std::move(given)),
        session(make_handler_session(loop, *clock, handler,
                                     {.job = job, .master = std::move(master)})) {
    self.address = std::move(address);
    self.local_world_size = 2;
    self.store_port = 4567;
    session->open([this](Push push) { told.push_back(std::move(push)); });
  }
  template <class T>
  T next() {
    elastrun::test::run_until(loop, [this] { return !told.empty(); });
    REQUIRE(std::holds_alternative<T>(told.front()));
    T push = std::get<T>(told.front());
    told.erase(told.begin());
    return push;
  }
  Round round() {
    session->join(self);
    return next<RoundReady>().round;
  }
  void close() {
    bool closed = false;
    session->close([&closed] { closed = true; });
    CHECK_FALSE(closed);
    elastrun::test::run_until(loop, [&closed] { return closed; });
  }

  const spec::JobSpec job;
  boost::asio::io_context loop;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> busy{
      loop.get_executor()};
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::shared_ptr<Scripted> handler = std::make_shared<Scripted>();
  std::unique_ptr<Session> session;
  std::vector<Push> told;
  Node self;
};

}  // namespace

TEST_CASE("handler session: a world of one node needs nothing but its rank") {
  OneNode node;
  const auto round = node.round();
  CHECK(round.master_addr == "127.0.0.1");
  CHECK(round.master_port == 4567);
  CHECK(round.world_size == 2);
  CHECK(round.attempt == 0);
  CHECK(node.session->agent_serves_store());
  CHECK(node.session->workers_are_clients());
  CHECK(node.session->backend() == "scripted");
  CHECK(node.handler->caller != std::this_thread::get_id());
}

TEST_CASE("handler session: failures spend the restarts, and the last one ends the job") {
  OneNode node(job_with(1));
  node.session->report(Failed{node.round().number, {.exit_code = 3}});
  const auto restart = node.next<Restart>();
  CHECK(restart.attempt_spent);
  CHECK(restart.restarts_left == 0);
  CHECK(restart.cause.exit_code == 3);
  const auto second = node.round();
  CHECK(second.attempt == 1);
  node.session->report(Failed{second.number, {.exit_code = 4}});
  const auto done = node.next<Done>();
  CHECK(done.failed);
  CHECK(done.cause.exit_code == 4);
}

TEST_CASE("handler session: nodes that wait restart the workers at no cost") {
  OneNode node(job_with(1));
  node.session->report(Started{node.round().number});
  node.handler->waiting = 2;
  const auto restart = node.next<Restart>();
  CHECK_FALSE(restart.attempt_spent);
  CHECK(restart.cause.kind == Cause::Kind::NodeJoined);
  CHECK(restart.restarts_left == 1);
  CHECK(node.round().attempt == 0);
}

TEST_CASE("handler session: where the handler says that workers meet, they meet") {
  OneNode node;
  node.handler->served = true;
  node.handler->next = [] {
    return RendezvousInfo{.bootstrap_store_info = BootstrapStoreInfo{"10.1.2.3", 99}};
  };
  const auto round = node.round();
  CHECK(round.master_addr == "10.1.2.3");
  CHECK(round.master_port == 99);
  CHECK_FALSE(node.session->agent_serves_store());
  CHECK(node.session->workers_are_clients());
}

TEST_CASE("handler session: what the user fixed wins over what the handler says") {
  OneNode node({}, {}, {"10.9.9.9", 7});
  node.handler->next = [] {
    return RendezvousInfo{.bootstrap_store_info = BootstrapStoreInfo{"10.1.2.3", 99}};
  };
  const auto round = node.round();
  CHECK(round.master_addr == "10.9.9.9");
  CHECK(round.master_port == 7);
  CHECK_FALSE(node.session->workers_are_clients());
}

TEST_CASE("handler session: errors of the handler end the job by their code") {
  OneNode node;
  const auto answers = [&node](Code code) {
    node.handler->next = [code] { return fail(code, "no more rounds"); };
    node.session->join(node.self);
  };
  answers(Code::Closed);
  auto done = node.next<Done>();
  CHECK(done.failed);
  CHECK(done.cause.kind == Cause::Kind::Closed);
  CHECK(done.cause.text == "the rendezvous handler scripted: no more rounds");
  answers(Code::Timeout);
  CHECK(node.next<Done>().cause.kind == Cause::Kind::Timeout);
  answers(Code::Cancelled);
  CHECK_FALSE(node.next<Done>().failed);
  answers(Code::Io);
  CHECK(node.next<Lost>().why == "the rendezvous handler scripted: no more rounds");
}

TEST_CASE("handler session: an exception of the handler is an error like others") {
  OneNode node;
  node.handler->next = []() -> Result<RendezvousInfo> { throw std::runtime_error("boom"); };
  node.session->join(node.self);
  CHECK(node.next<Lost>().why == "the rendezvous handler scripted: an exception: boom");
}

TEST_CASE("handler session: worlds that cannot be are refused with a sentence") {
  OneNode node;
  const auto refused = [&node](RendezvousInfo info) {
    node.handler->next = [info] { return info; };
    node.session->join(node.self);
    return node.next<Lost>().why;
  };
  CHECK(refused({.rank = 2, .world_size = 2}).find("rank 2 in a world of 2") != std::string::npos);
  CHECK(refused({.rank = 0, .world_size = 2}).find("needs a store") != std::string::npos);
  const elastrun::test::Scratch folder;
  const auto store = *store::BlockingStore::open_file(folder.path + "/s");
  CHECK(refused({.world_size = 2, .store = store}).find("local_addr") != std::string::npos);
}

TEST_CASE("handler session: the handler is shut down at the end, unless a signal came") {
  OneNode node;
  node.session->report(Succeeded{node.round().number});
  CHECK_FALSE(node.next<Done>().failed);
  node.close();
  CHECK(node.handler->shutdowns == 1);

  OneNode signalled;
  signalled.round();
  signalled.session->report(Leaving{"it received SIGTERM"});
  signalled.close();
  CHECK(signalled.handler->shutdowns == 0);
}

TEST_CASE("handler session: a handler that does not return keeps nobody from ending") {
  std::promise<void> release;
  std::promise<void> entered;
  {
    OneNode node;
    node.handler->next = [&entered, wait = release.get_future().share()] {
      entered.set_value();
      wait.wait();
      return RendezvousInfo{};
    };
    node.session->join(node.self);
    entered.get_future().wait();
    node.session->report(Leaving{"it received SIGTERM"});
    node.close();
  }
  release.set_value();
}

TEST_CASE("handler session: two nodes agree about ranks, attempt and master, and leave together") {
  const elastrun::test::Scratch folder;
  OneNode first(job_with(3), "127.0.0.1"), second(job_with(3), "127.0.0.2");
  second.self.local_world_size = 3;
  second.self.store_port = 89;
  int number = 0;
  const auto meet = [&] {
    const auto prefix = std::to_string(number++);
    const auto path = folder.path + "/store";
    first.handler->next = [path, prefix] {
      const auto store = *store::BlockingStore::open_file(path);
      return RendezvousInfo{0, 2, store->within(prefix), {}};
    };
    second.handler->next = [path, prefix] {
      const auto store = *store::BlockingStore::open_file(path);
      return RendezvousInfo{1, 2, store->within(prefix), {}};
    };
    first.session->join(first.self);
    return std::pair{second.round(), first.next<RoundReady>().round};
  };
  auto [theirs, ours] = meet();
  CHECK(ours.world_size == 5);
  CHECK(ours.rank_base == 0);
  CHECK(theirs.rank_base == 2);
  CHECK(theirs.group_rank == 1);
  CHECK(theirs.master_addr == "127.0.0.1");
  CHECK(theirs.master_port == 4567);

  // Only one of them saw a failure; both know of it in the next round.
  second.session->report(Failed{theirs.number, {}});
  second.next<Restart>();
  std::tie(theirs, ours) = meet();
  CHECK(ours.attempt == 1);
  CHECK(theirs.attempt == 1);
  CHECK(ours.number == theirs.number);

  first.session->report(Succeeded{ours.number});
  elastrun::test::run_ready(first.loop);
  CHECK(first.told.empty());  // the other one is not done
  second.session->report(Succeeded{theirs.number});
  CHECK_FALSE(second.next<Done>().failed);
  CHECK_FALSE(first.next<Done>().failed);
}

TEST_CASE(
    "handler session: whoever serves the store waits on for the others when the time is over") {
  const elastrun::test::Scratch folder;
  OneNode first(job_with(0, 1ms), "127.0.0.1"), second(job_with(0, 1ms), "127.0.0.2");
  const auto give = [path = folder.path + "/store"](OneNode& node, int rank) {
    node.handler->next = [path, rank] {
      return RendezvousInfo{rank, 2, *store::BlockingStore::open_file(path), {}};
    };
  };
  give(first, 0), give(second, 1);
  first.session->join(first.self);
  const auto theirs = second.round();
  const auto ours = first.next<RoundReady>().round;
  SUBCASE("until all have come") {
    first.session->report(Succeeded{ours.number});
    const auto later = first.clock->now() + 200ms;
    elastrun::test::run_until(first.loop, [&] { return first.clock->now() > later; });
    CHECK(first.told.empty());
    second.session->report(Succeeded{theirs.number});
    CHECK_FALSE(second.next<Done>().failed);
    CHECK_FALSE(first.next<Done>().failed);
  }
  SUBCASE("but nobody needs the others") {
    second.session->report(Succeeded{theirs.number});
    CHECK_FALSE(second.next<Done>().failed);
  }
}

namespace {

struct Named final : RendezvousHandler {
  explicit Named(std::string own) : name(std::move(own)) {}
  std::string get_backend() const override { return name; }
  std::string get_run_id() const override { return "r"; }
  Result<RendezvousInfo> next_rendezvous() override { return RendezvousInfo{}; }
  std::string name;
};

HandlerCreator making(std::string name) {
  return [name](const RendezvousParameters&) { return std::make_shared<Named>(name); };
}

std::string error_of(const RendezvousParameters& parameters) {
  const auto handler = get_rendezvous_handler(parameters);
  REQUIRE_FALSE(handler);
  return handler.error().text;
}

}  // namespace

TEST_CASE("handler registry: a registered back end is made from its parameters") {
  std::string seen;
  REQUIRE(register_rendezvous_handler("test-made", [&](const RendezvousParameters& parameters) {
    seen = parameters.endpoint;
    return std::make_shared<Named>("test-made");
  }));
  const auto handler = get_rendezvous_handler({.backend = "test-made", .endpoint = "here:1"});
  REQUIRE(handler);
  CHECK((*handler)->get_backend() == "test-made");
  CHECK(seen == "here:1");
  const auto names = registered_backends();
  CHECK(std::ranges::find(names, "test-made") != names.end());
}

TEST_CASE("handler registry: a taken name, an unknown one and a false one are refused") {
  REQUIRE(register_rendezvous_handler("test-taken", making("test-taken")));
  for (const char* name : {"test-taken", "c10d", "static", "etcd", "etcd-v2", "file"}) {
    const auto again = register_rendezvous_handler(name, making(name));
    REQUIRE_FALSE(again);
    CHECK(again.error().text.find("already registered") != std::string::npos);
  }
  CHECK_FALSE(register_rendezvous_handler("", making("")));
  CHECK(error_of({.backend = "nobody"}) ==
        "The rendezvous backend 'nobody' is not registered, and it is none of those that are built "
        "in.");
  REQUIRE(register_rendezvous_handler("test-liar", making("somebody")));
  CHECK(error_of({.backend = "test-liar"}) ==
        "The rendezvous backend 'somebody' does not match the requested backend 'test-liar'.");
}

TEST_CASE("handler registry: parameters are checked, as torchrun checks them") {
  CHECK(error_of({}) == "A rendezvous backend needs a name, and this one is empty.");
  CHECK(error_of({.backend = "c10d", .min_nodes = 0}) ==
        "The minimum number of nodes has to be 1 or more, not 0.");
  CHECK(error_of({.backend = "c10d", .min_nodes = 3, .max_nodes = 2}) ==
        "The maximum number of nodes (2) is below the minimum (3).");
}

TEST_CASE("handler parameters: configuration is read as text, truth and number") {
  const RendezvousParameters parameters{.conf = {{"on", "Yes"}, {"off", "0"}, {"n", " 12 "}}};
  CHECK(parameters.get("on") == "Yes");
  CHECK(parameters.get("none", "x") == "x");
  CHECK(*parameters.get_as_bool("on") == true);
  CHECK(*parameters.get_as_bool("off") == false);
  CHECK_FALSE(parameters.get_as_bool("none")->has_value());
  CHECK(*parameters.get_as_int("n") == 12);
  CHECK(parameters.get_as_bool("n").error().text ==
        "The rendezvous configuration option 'n' does not represent a valid boolean value.");
  CHECK(parameters.get_as_int("on").error().text ==
        "The rendezvous configuration option 'on' does not represent a valid integer value.");
}

TEST_CASE("handler registry: a built-in back end is for agents") {
  const auto handler = get_rendezvous_handler({.backend = "c10d", .run_id = "seven"});
  REQUIRE(handler);
  CHECK((*handler)->get_backend() == "c10d");
  CHECK((*handler)->get_run_id() == "seven");
  const auto round = (*handler)->next_rendezvous();
  REQUIRE_FALSE(round);
  CHECK(round.error().code == Code::Usage);
}
