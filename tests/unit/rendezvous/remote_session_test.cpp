// SPDX-License-Identifier: Apache-2.0

#include "core/json.hpp"
#include "net/link.hpp"
#include "rendezvous/session/make_session.hpp"
#include "rendezvous/wire/messages.hpp"
#include "support/logged_text.hpp"
#include "unit/rendezvous/timeless.hpp"

#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <string>
#include <unistd.h>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

static boost::asio::ip::tcp::acceptor listening(Network& network) {
  return {network.loop, {boost::asio::ip::address_v4::loopback(), 0}};
}

TEST_CASE("remote session: --local-addr is announced, and the node is named after it") {
  Town town(rules_for(1, 1));
  auto a = town.agent("job", "s3cret", "127.0.0.9");
  a->join();
  const Round round = a->round();
  CHECK(round.master_addr == "127.0.0.9");
  CHECK(round.members.front().id.starts_with("127.0.0.9_"));
}

TEST_CASE("remote session: a coordinator that resigns sends the job back to the scheduler") {
  Town town(rules_for(2, 2));
  auto [a, b] = town.pair();
  bool retired = false;
  town.host->retire("it is preempted", false, 5s, [&] { retired = true; });
  const auto lost = a->hear<Lost>();
  CHECK(lost.requeue);
  CHECK(lost.why == "it is preempted");
  run_until(town.network.loop, [&] { return retired; });
}

TEST_CASE("remote session: a spare that hosts the coordinator does not go without the job") {
  Network network;
  const auto sealer = net::make_sealer("s3cret");
  const auto port = free_port();
  const auto agent = [&](bool hosts) {
    SessionSettings settings;
    settings.run_id = "job";
    settings.rules = rules_for(1, 1);
    settings.config.is_host = hosts;
    auto locator =
        make_fixed_locator(network.loop, *network.clock, sealer, settings, {"127.0.0.1", port});
    return std::make_unique<TestAgent>(
        network,
        make_remote_session(network.loop, *network.clock, sealer, std::move(locator), settings));
  };
  auto host = agent(true), other = agent(false);
  other->join(1, "other");
  other->round();
  host->join(1, "host");
  host->hear<Spare>();
  host->session->report(AskPreempt{"SIGTERM", 30s});
  other->hear<AskReached>();
  other->succeed();
  CHECK(host->hear<Done>().cause.node.empty());
}

TEST_CASE(
    "remote session: without its coordinator a node tells as many restarts left as that had") {
  auto rules = rules_for(2, 2, 2);
  rules.restart_policy_auto = true;
  Town town(rules);
  auto a = town.agent(), b = town.agent();
  a->join(), b->join();
  CHECK(a->round().restarts_left == 2);
  b->round();
  b->fail(3);
  for (auto* agent : {a.get(), b.get()}) {
    CHECK(agent->hear<Restart>().restarts_left == 1);
    agent->join();
  }
  CHECK(a->round().restarts_left == 1);
  const auto round = b->round();
  CHECK(round.restarts_left == 1);
  // Its own checkpoint gives both back; of one elsewhere it would have to hear.
  a->session->report(Reached{.round = round.number, .checkpoint = 31});
  town.host.reset();
  CHECK(a->hear<Restart>().restarts_left == 2);
  CHECK(b->hear<Restart>().restarts_left == 1);
}

TEST_CASE(
    "remote session: whoever finds its coordinator silent hangs up when its group has ended, not "
    "before") {
  TimelessNetwork network;
  // All of them are on this loop: whatever is on its way arrives before time goes on.
  const auto pass_until = [&network](const std::function<bool()>& holds) {
    while (!holds()) {
      network.loop.restart();
      network.loop.run_for(1ms);
      network.loop.poll();
      network.fake.advance(100ms);
    }
  };
  auto port = listening(network);
  SessionSettings settings;
  settings.rules.max_restarts = 1;
  settings.config.read_timeout = 1h;
  const auto sealer = net::make_sealer("");
  const auto its = agent_at(network, port.local_endpoint().port(), settings, sealer);
  TestAgent& agent = *its;
  agent.join();
  // A coordinator that gives it a round and falls silent, welcomes it once more and falls silent
  // again, and then hears it without an answer. Whichever connection it would lose, it would think
  // half a second later that the group has ended.
  std::vector<std::shared_ptr<net::Link>> links;
  int hellos_at_work = 0, hung_up = 0;
  const auto hear = [&](net::Link& link, const std::string& text) {
    const auto message = decode_from_agent(text);
    REQUIRE(message.has_value());
    if (const auto* hello = std::get_if<Hello>(&*message)) {
      if (hello->at_work && ++hellos_at_work > 1) return;
      link.send(encode(FromCoordinator(Welcome{"none", 1, false, 5s, 2})));
    } else if (const auto* join = std::get_if<Join>(&*message)) {
      RoundReady ready;
      ready.round.epoch = ready.round.number = 1;
      ready.round.members = {join->node};
      link.send(encode(FromCoordinator(Push(ready))));
    }
  };
  std::function<void()> accept = [&] {
    port.async_accept([&](auto error, boost::asio::ip::tcp::socket socket) {
      if (error) return;
      links.push_back(
          std::make_shared<net::Link>(std::move(socket), sealer, net::Link::Side::Listener));
      links.back()->start(
          {[&hear, link = links.back().get()](const std::string& text) { hear(*link, text); },
           [&hung_up](const Error& end) { hung_up += end.code == Code::Closed ? 1 : 0; }});
      accept();
    });
  };
  accept();
  const auto is_told = [&agent] { return !agent.told.empty(); };
  pass_until(is_told);
  agent.round();
  pass_until(is_told);
  CHECK(agent.hear<Restart>().cause.kind == Cause::Kind::CoordinatorLost);
  pass_until([&hellos_at_work] { return hellos_at_work == 3; });
  CHECK(hung_up == 0);
  SUBCASE("it joins again") {
    agent.join();
  }
  SUBCASE("or ends") {
    agent.session->close([] {});
  }
  pass_until([&hung_up] { return hung_up >= 3; });
}

namespace {

/// A host at a fixed endpoint that gives its only member a round, is frozen, and perhaps wakes.
struct FrozenHost {
  explicit FrozenHost(Network& with) : network(with) { accept(); }

  std::unique_ptr<TestAgent> agent(Duration read_timeout) {
    SessionSettings settings;
    settings.config.keep_alive_interval = 10ms;
    settings.config.read_timeout = read_timeout;
    return agent_at(network, port.local_endpoint().port(), std::move(settings), sealer);
  }
  void accept() {
    port.async_accept([this](auto, boost::asio::ip::tcp::socket socket) {
      ++connections;
      if (connections > 1 && is_proxy) return accept();
      if (connections > 1 && connections < wakes_at) {
        mute.push_back(std::move(socket));
      } else {
        serve(std::move(socket));
      }
      accept();
    });
  }
  void serve(boost::asio::ip::tcp::socket socket) {
    links.push_back(
        std::make_shared<net::Link>(std::move(socket), sealer, net::Link::Side::Listener));
    net::Link::Handlers handlers;
    handlers.on_frame = [this, link = links.back().get()](const std::string& text) {
      const auto message = decode_from_agent(text);
      REQUIRE(message.has_value());
      if (std::holds_alternative<Hello>(*message)) {
        link->send(encode(FromCoordinator(Welcome{"none", 1, false, 5ms, 2})));
      } else if (const auto* join = std::get_if<Join>(&*message)) {
        RoundReady ready;
        ready.round.epoch = 1;
        ready.round.number = ++rounds;
        ready.round.members = {join->node};
        link->send(encode(FromCoordinator(Push(ready))));
      }
    };
    handlers.on_end = [this](const Error&) { ++ended; };
    links.back()->start(std::move(handlers));
  }

  Network& network;
  std::shared_ptr<const net::Sealer> sealer = net::make_sealer("");
  boost::asio::ip::tcp::acceptor port = listening(network);
  int connections = 0, wakes_at = 1000, rounds = 0, ended = 0;
  bool is_proxy = false;  // which hangs up, because the host behind it is gone
  std::vector<std::shared_ptr<net::Link>> links;
  std::vector<boost::asio::ip::tcp::socket> mute;
};

}  // namespace

TEST_CASE("remote session: a fixed host that takes connections but is mute is waited for") {
  Network network;
  FrozenHost host(network);
  SUBCASE("until it wakes") {
    host.wakes_at = 8;  // each attempt lasts as long as a silence
    auto agent = host.agent(60s);
    agent->join();
    CHECK(agent->round().number == 1);
    agent->hear<Restart>();
    agent->join();
    CHECK(agent->round().number == 2);
  }
  SUBCASE("for as long as is said then") {
    auto agent = host.agent(2s);  // in which a busy machine gets as far as the silence
    agent->join();
    agent->round();
    agent->hear<Restart>();
    const auto lost = agent->hear<Lost>();
    CHECK(lost.requeue);
    CHECK(lost.why.starts_with("no coordinator of the job \"none\" within 2.0 s: "));
    CHECK(lost.why.find("takes the connection, but does not answer") != std::string::npos);
  }
  SUBCASE("but not a proxy that hangs up") {
    host.is_proxy = true;
    auto agent = host.agent(1h);
    agent->join();
    agent->round();
    agent->hear<Restart>();
    const auto lost = agent->hear<Lost>();
    CHECK(lost.requeue);
    CHECK(lost.why.find("ends it without an answer") != std::string::npos);
  }
}

TEST_CASE("remote session: each connection that it gave up stays until its group has ended") {
  Network network;
  FrozenHost host(network);
  host.wakes_at = 2;  // but it answers no heartbeat
  auto agent = host.agent(60s);
  agent->join();
  agent->round();
  agent->hear<Restart>();
  run_until(network.loop, [&] { return host.links.size() >= 4; });
  CHECK(host.ended == 0);
  agent->join();
  run_until(network.loop, [&] { return host.ended >= 3; });
}

TEST_CASE("coordinator: nobody hangs who waits for a node that has not said that it has started") {
  Timeless town(rules_for(2, 2));
  town.agent->join();
  Spoken other(town);
  town.pass(2s, 20);
  const auto round = town.agent->round().number;
  using Kind = hangs::NodeProgress::Kind;
  town.agent->session->report(ProgressReport{round, {Kind::Stands, false}, 60s});
  town.pass(100ms, 20);
  CHECK(town.agent->told.empty());
  other.link->send(encode(FromAgent(Started{round})));
  town.pass(100ms, 20);
  CHECK(town.agent->hear<TakeStacks>().hang);
}

TEST_CASE("coordinator: a node that goes while the others stand still makes no hang of it") {
  Timeless town(rules_for(1, 2));
  town.agent->join();
  Spoken other(town);
  town.pass(2s, 20);
  const auto round = town.agent->round().number;
  using Kind = hangs::NodeProgress::Kind;
  other.link->send(encode(FromAgent(ProgressReport{round, {Kind::Excused, true}, 0s})));
  town.pass(100ms, 20);
  town.agent->session->report(ProgressReport{round, {Kind::Stands, true}, 60s});
  town.pass(100ms, 20);
  SUBCASE("lost") {
    other.link->close();
  }
  SUBCASE("with a goodbye") {
    other.link->send(encode(FromAgent(Leaving{"SIGTERM"})));
  }
  town.pass(100ms, 20);
  town.agent->hear<Restart>();
  CHECK(town.agent->told.empty());
}

namespace {

std::string greeting_of(int version) {
  return "\xE5lastrun" + std::string(1, static_cast<char>(version)) + std::string(16, 'n');
}

}  // namespace

TEST_CASE("remote session: a coordinator of another version of the protocol is named") {
  for (const int version : {2, 4}) {
    Network network;
    auto port = listening(network);
    const auto sealer = net::make_sealer("");
    const auto its = agent_at(network, port.local_endpoint().port(), {}, sealer);
    TestAgent& agent = *its;
    agent.join();
    std::vector<boost::asio::ip::tcp::socket> sockets;
    port.async_accept([&](auto, boost::asio::ip::tcp::socket socket) {
      boost::asio::write(socket, boost::asio::buffer(greeting_of(version)));
      sockets.push_back(std::move(socket));
    });
    const auto lost = agent.hear<Lost>();
    CHECK(!lost.requeue);
    CHECK(lost.why.ends_with("speaks version " + std::to_string(version) +
                             " of the protocol, this side version 3: use the same elastrun on all "
                             "nodes"));
  }
}

TEST_CASE("coordinator: an agent of another version of the protocol is named, and can name us") {
  Town town(rules_for(1, 1));
  elastrun::test::LoggedText log;
  std::string& logged = log.text;
  for (const int version : {2, 4}) {
    logged.clear();
    boost::asio::ip::tcp::socket socket(town.network.loop);
    socket.connect({boost::asio::ip::address_v4::loopback(), town.host->port()});
    boost::asio::write(socket, boost::asio::buffer(greeting_of(version)));
    std::string heard;
    bool ended = false;
    boost::asio::async_read(
        socket, boost::asio::dynamic_buffer(heard),
        [&ended](auto error, std::size_t) { ended = error == boost::asio::error::eof; });
    run_until(town.network.loop, [&] { return ended && !logged.empty(); });
    CHECK(heard.starts_with(std::string("\xE5lastrun") + '\3'));
    CHECK(
        logged.find("127.0.0.1 speaks version " + std::to_string(version) +
                    " of the protocol, this side version 3: use the same elastrun on all nodes") !=
        std::string::npos);
  }
}

TEST_CASE("remote session: nobody begins anew before one that leaves has hung up") {
  Town town(rules_for(1, 2));
  auto a = town.agent(), b = town.agent();
  a->grace = b->grace = 600s;
  a->join(1, "a"), b->join(1, "b");
  a->round(), b->round();
  b->session->report(Leaving{"received SIGTERM"});
  CHECK(a->hear<Restart>().cause.kind == Cause::Kind::NodeLeft);
  a->join(1, "a");
  // What it waits for is told; only then.
  run_until(town.network.loop, [&] { return !a->progress.text.empty() || !a->told.empty(); });
  CHECK(a->told.empty());
  CHECK(a->progress.text.find("1 node to stop its workers") != std::string::npos);
  b->close();
  CHECK(a->round().world_size == 1);
}

TEST_CASE("remote session: a pause of the machine is no part of join_timeout") {
  TimelessNetwork network;
  SessionSettings settings;
  settings.rules.join_timeout = 600s;
  const auto agent = agent_at(network, free_port(), settings);
  agent->join();
  network.pass(2s, 40);
  network.fake.pause(3600s);
  network.pass(2s, 40);
  CHECK(agent->told.empty());
  network.pass(600s, 100);
  CHECK(agent->hear<Lost>().why.starts_with("no coordinator of the job \"none\" within 10 min"));
}

TEST_CASE("coordinator: a pause of its machine is no part of join_timeout") {
  Timeless town(rules_for(2, 2));
  town.agent->join();
  town.pass(2s, 20);
  town.network.fake.pause(3600s);
  town.pass(2s, 20);
  CHECK(town.agent->told.empty());
  town.pass(600s, 200);
  CHECK(town.agent->hear<Done>().cause.kind == Cause::Kind::Timeout);
}

TEST_CASE("coordinator: what came during the pause does not end the wait either") {
  Timeless town(rules_for(3, 3));
  town.agent->join();
  town.pass(2s, 20);
  town.network.fake.pause(3600s);
  Spoken other(town);
  town.pass(2s, 20);
  CHECK(town.agent->told.empty());
}

TEST_CASE("remote session: nobody at the endpoint is reported with what was tried") {
  Network network;
  const std::uint16_t port = free_port();
  SessionSettings settings;
  settings.rules.join_timeout = 100ms;
  const auto its = agent_at(network, port, settings);
  TestAgent& agent = *its;
  agent.join();
  const auto lost = agent.hear<Lost>();
  CHECK(!lost.requeue);
  CHECK(lost.why.ends_with("(127.0.0.1: Connection refused)"));
}

TEST_CASE("remote session: a stranger who says nothing is named, and not waited for without end") {
  Network network;
  auto silent = listening(network);
  SessionSettings settings;
  settings.rules.join_timeout = 300ms;
  settings.rules.progress_interval = 10ms;
  settings.config.keep_alive_interval = 20ms;
  const auto its = agent_at(network, silent.local_endpoint().port(), settings);
  TestAgent& agent = *its;
  agent.join();
  const auto lost = agent.hear<Lost>();
  CHECK(!lost.requeue);
  const auto owner = "process " + std::to_string(::getpid()) + " (";
  for (const auto& text : {lost.why, agent.progress.text}) {
    CHECK(text.find("does not answer as a coordinator does: " + owner) != std::string::npos);
  }
}

namespace {

/// Agents that meet at one port of this machine, where the first of them hosts.
struct MeetingPoint : Network {
  std::unique_ptr<TestAgent> agent(std::optional<bool> is_host = {},
                                   const std::string& start = {}) {
    SessionSettings settings;
    settings.start = start;
    settings.endpoint = "127.0.0.1:" + std::to_string(port);
    settings.run_id = "job";
    settings.rules.min_nodes = settings.rules.max_nodes = 2;
    settings.config.is_host = is_host;
    auto session = make_session(loop, *clock, settings);
    REQUIRE(session.has_value());
    auto made = std::make_unique<TestAgent>(*this, std::move(*session));
    made->join();
    return made;
  }
  /// Two, in the first round.
  std::pair<std::unique_ptr<TestAgent>, std::unique_ptr<TestAgent>> pair(
      const std::string& start = {}) {
    auto a = agent({}, start), b = agent({}, start);
    CHECK(a->round().group_world_size() == 2);
    b->round();
    return {std::move(a), std::move(b)};
  }
  /// One that hears that the job before it is just ending.
  std::unique_ptr<TestAgent> early_agent() {
    auto next = agent();
    run_until(loop, [&] { return next->progress.text.find("just ending") != std::string::npos; });
    return next;
  }
  std::uint16_t port = free_port();
};

}  // namespace

TEST_CASE("make_session: of two agents at their own address the first one hosts") {
  MeetingPoint meeting;
  auto [a, b] = meeting.pair();
  a->succeed(), b->succeed();
  CHECK(!a->hear<Done>().failed);
  // The host goes last, whoever asks first.
  bool closed = false;
  a->session->close([&] { closed = true; });
  CHECK(!b->hear<Done>().failed);
  CHECK(!closed);
  b->close();
  run_until(meeting.loop, [&] { return closed; });
}

TEST_CASE("make_session: an agent that came second hosts when the first one is gone") {
  MeetingPoint meeting;
  boost::asio::ip::tcp::acceptor first(
      meeting.loop, {boost::asio::ip::address_v4::loopback(), meeting.port}, true);
  auto a = meeting.agent();
  boost::asio::ip::tcp::socket caller(meeting.loop);
  bool called = false;
  first.async_accept(caller, [&](auto) { called = true; });
  run_until(meeting.loop, [&] { return called; });
  first.close();
  caller.close();
  auto b = meeting.agent();
  CHECK(a->round().world_size == 2);
}

TEST_CASE("make_session: a client waits for a host that comes later") {
  MeetingPoint meeting;
  auto a = meeting.agent(false);
  for (int i = 0; i < 5; ++i) meeting.loop.run_one();
  auto b = meeting.agent(true);
  CHECK(a->round().world_size == 2);
}

TEST_CASE("make_session: a host whose port is taken says so") {
  MeetingPoint meeting;
  auto taken = listening(meeting);
  meeting.port = taken.local_endpoint().port();
  const auto lost = meeting.agent(true)->hear<Lost>();
  CHECK(!lost.requeue);
  CHECK(lost.why.find("Address already in use") != std::string::npos);
}

TEST_CASE("make_session: the next start of a job does not hear the verdict on the one before") {
  MeetingPoint meeting;
  auto [host, straggler] = meeting.pair();
  host->fail(3);
  CHECK(host->hear<Done>().failed);
  auto next = meeting.early_agent();
  CHECK(straggler->hear<Done>().cause.exit_code == 3);
  straggler.reset();
  host.reset();
  auto last = meeting.agent();
  CHECK(next->round().world_size == 2);
  CHECK(last->round().number == 1);
}

TEST_CASE("make_session: a host whose job has ended sends new nodes away") {
  MeetingPoint meeting;
  auto [host, member] = meeting.pair();
  member->fail(3);
  CHECK(host->hear<Done>().failed);
  CHECK(member->hear<Done>().failed);
  // The agent of the host lives on for a moment after its last word to the rendezvous.
  member->close();
  host->close();
  auto next = meeting.early_agent();
  host.reset();
  auto last = meeting.agent();
  CHECK(next->round().world_size == 2);
  CHECK(last->round().number == 1);
}

TEST_CASE("make_session: a node that is late hears the verdict on the start that it is of") {
  MeetingPoint meeting;
  auto [host, straggler] = meeting.pair("1700000000/1");
  host->fail(3);
  CHECK(host->hear<Done>().failed);
  auto late = meeting.agent({}, "/1");  // Slurm does not tell the time everywhere
  CHECK(late->hear<Done>().cause.exit_code == 3);
}

TEST_CASE("make_session: a host that leaves tells the others") {
  MeetingPoint meeting;
  auto [a, b] = meeting.pair();
  a->session->report(Leaving{"received SIGTERM"});
  a->close();
  CHECK(b->hear<Lost>().requeue);
}

namespace {

std::vector<boost::asio::ip::address> rails(std::size_t count) {
  std::vector<boost::asio::ip::address> all{boost::asio::ip::make_address("127.0.0.1"),
                                            boost::asio::ip::make_address("fe80::1")};
  for (std::size_t i = 0; i < count; ++i) {
    const auto text = fmt::format("fd00:1111:2222:3333:4444:5555:6666:{:x}", 0x1000 + i);
    all.push_back(boost::asio::ip::make_address(text));
  }
  return all;
}

}  // namespace

TEST_CASE("other addresses: a machine of many rails tells all that others may see") {
  const auto all = rails(40);
  const auto found = alternate_addresses(all[2].to_string(), all);
  CHECK(found.size() == 39);
  CHECK(std::ranges::find(found, all.back().to_string()) != found.end());
  CHECK(std::ranges::find(found, all[2].to_string()) == found.end());
  CHECK(std::ranges::find(found, "127.0.0.1") == found.end());
  CHECK(std::ranges::find(found, "fe80::1") == found.end());
}

TEST_CASE("other addresses: as many as there may be, with the longest texts, are within a frame") {
  Node node;
  node.alternates = alternate_addresses("10.0.0.1", rails(1000));
  CHECK(node.alternates.size() == kMaxAlternateAddresses);
  // Escaped as \u0001 each: nothing takes more bytes.
  node.id = node.instance = node.address = node.role = std::string(kLongestSent, '\1');
  const std::string frame = encode(FromAgent(Join{node, {}, {}}));
  CHECK(frame.size() < 60u << 10);
  const auto read = decode_from_agent(frame);
  REQUIRE(read.has_value());
  CHECK(std::get<Join>(*read).node.alternates == node.alternates);
}
