// SPDX-License-Identifier: Apache-2.0
// Whole sessions whose coordinator is elected: the job outlives it.
#include "net/link.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/wire/messages.hpp"
#include "unit/rendezvous/agents.hpp"

#include <doctest/doctest.h>
#include <functional>
#include <string>
#include <utility>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// A register in memory, whose entry lapses, and whose line breaks, when the test says so.
struct ElectedRegister {
  LeaderLease::Leader leader;
  std::string record;
  bool away = false;
  bool mute = false;  // no answer ever comes, as of a network file system whose server is gone
  bool lapses_at_record = false;
  bool swallows_answers = false;  // to records: the leader dies before it hears that they are there
  bool keeps_victories = false;   // back: others read the entry before its writer hears that it won
  std::vector<Then> victories;
  int reads = 0;
  void lapse() { leader.value.clear(); }
};

class MemoryLeaderLease final : public LeaderLease {
 public:
  MemoryLeaderLease(boost::asio::io_context& loop, ElectedRegister& shared, Duration ttl)
      : loop_(loop), register_(shared), ttl_(ttl) {}
  ~MemoryLeaderLease() override { *alive_ = false; }

  void read(Answer<std::optional<Leader>> answer) override {
    later([this, answer = std::move(answer)] {
      ++register_.reads;
      if (register_.away) return answer(fail(Code::Io, "away"));
      if (register_.leader.value.empty()) return answer(std::nullopt);
      answer(register_.leader);
    });
  }
  void claim(const std::string& value, Answer<Leader> answer) override {
    later([this, value, answer = std::move(answer)] {
      if (register_.away) return answer(fail(Code::Io, "away"));
      if (register_.leader.value.empty()) register_.leader = {value, register_.leader.epoch + 1};
      if (register_.leader.value == value) mine_ = register_.leader.epoch;
      register_.leader.record = register_.record;
      auto told = [alive = alive_, answer, leader = register_.leader] {
        if (*alive) answer(leader);
      };
      const bool kept = register_.keeps_victories && register_.leader.value == value;
      kept ? register_.victories.push_back(std::move(told)) : told();
    });
  }
  void renew(Answer<bool> answer) override {
    later([this, answer = std::move(answer)] {
      if (register_.away) return answer(fail(Code::Io, "away"));
      answer(!register_.leader.value.empty() && register_.leader.epoch == mine_);
    });
  }
  void record(const std::string& record, Answer<bool> answer) override {
    later([this, record, answer = std::move(answer)] {
      if (register_.away) return answer(fail(Code::Io, "away"));
      if (std::exchange(register_.lapses_at_record, false)) register_.lapse();
      const bool mine = !register_.leader.value.empty() && register_.leader.epoch == mine_;
      if (mine) register_.record = record;
      if (!register_.swallows_answers) answer(mine);
    });
  }
  void release(bool forget, Then done) override {
    if (register_.leader.epoch == mine_) {
      if (forget) register_.record.clear();
      register_.lapse();
    }
    later(std::move(done));
  }
  Duration ttl() const override { return ttl_; }

 private:
  template <class Reply>
  void later(Reply reply) {
    boost::asio::post(loop_, [alive = alive_, reply = std::move(reply), &from = register_] {
      if (*alive && !from.mute) reply();
    });
  }

  boost::asio::io_context& loop_;
  ElectedRegister& register_;
  const Duration ttl_;
  std::int64_t mine_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

struct Parish {
  std::unique_ptr<TestAgent> agent(Rules rules, Duration ttl, Duration entry_life = 30s) {
    auto sealer = net::make_sealer("s");
    SessionSettings settings;
    settings.run_id = "job";
    settings.rules = rules;
    settings.config.advertise = "127.0.0.1";
    settings.config.lease_ttl = entry_life / 3;
    auto locator = make_elected_locator(
        network.loop, *network.clock, sealer,
        std::make_unique<MemoryLeaderLease>(network.loop, shared, ttl), settings);
    return std::make_unique<TestAgent>(
        network,
        make_remote_session(network.loop, *network.clock, sealer, std::move(locator), settings));
  }
  std::unique_ptr<TestAgent> joined(const Rules& rules, const char* name,
                                    Duration entry_life = 30s) {
    auto made = agent(rules, 30ms, entry_life);
    made->join(1, name);
    return made;
  }
  /// The one that is elected, and waits for others.
  std::unique_ptr<TestAgent> leader(const Rules& rules) {
    auto made = joined(rules, "a");
    run_until(network.loop, [&made] { return made->progress.present == 1; });
    return made;
  }
  void until(const std::function<bool()>& holds) { run_until(network.loop, holds); }
  void pass(Duration time) {
    until([this, later = network.clock->now() + time] { return network.clock->now() > later; });
  }
  void crash(std::unique_ptr<TestAgent>& leading) {
    leading.reset();
    shared.lapse();
  }
  Network network;
  ElectedRegister shared;
};

/// Who gets the port of a leader that has died, and does not take its members in.
class Stranger {
 public:
  enum class Kind { Proxy, OtherSecret, OtherJob };
  Stranger(Network& network, const std::string& entry, Kind kind)
      : kind_(kind),
        port_(network.loop,
              {boost::asio::ip::address_v4::loopback(), decode_entry(entry).value().port}) {
    accept();
  }
  ~Stranger() {
    for (const auto& link : links_) link->close();
  }
  int met = 0;

 private:
  void accept() {
    port_.async_accept([this](const auto& error, boost::asio::ip::tcp::socket socket) {
      if (error) return;
      ++met;
      kind_ == Kind::Proxy ? refuse_http(std::move(socket)) : refuse_agent(std::move(socket));
      accept();
    });
  }
  static void refuse_http(boost::asio::ip::tcp::socket socket) {
    boost::system::error_code ignored;
    socket.send(boost::asio::buffer(std::string("HTTP/1.1 400 Bad Request\r\n\r\n")), 0, ignored);
  }
  void refuse_agent(boost::asio::ip::tcp::socket socket) {
    const auto sealer = net::make_sealer(kind_ == Kind::OtherSecret ? "another" : "s");
    const auto link =
        std::make_shared<net::Link>(std::move(socket), sealer, net::Link::Side::Listener,
                                    "your secret is not the one of the job \"b\"");
    links_.push_back(link);
    link->start({[raw = link.get()](const std::string&) {
                   raw->send(encode(FromCoordinator(Refusal{"this is the job \"b\"", true})));
                 },
                 [](const Error&) {}});
  }

  const Kind kind_;
  boost::asio::ip::tcp::acceptor port_;
  std::vector<std::shared_ptr<net::Link>> links_;
};

void settle_into(std::vector<TestAgent*> agents, int nodes) {
  for (TestAgent* agent : agents) {
    const Round round = agent->round();
    CHECK(round.group_world_size() == nodes);
  }
}

}  // namespace

TEST_CASE(
    "elected session: a leader whose register is away decides nothing, and goes on when it is "
    "back") {
  Parish parish;
  auto a = parish.joined(rules_for(1, 2), "a");
  auto b = parish.joined(rules_for(1, 2), "b");
  settle_into({a.get(), b.get()}, 2);
  parish.shared.away = true;
  const auto epoch = parish.shared.leader.epoch;
  // Longer than a TTL: the leader has to doubt, but nobody is disturbed.
  parish.pass(100ms);
  CHECK(a->told.empty());
  CHECK(b->told.empty());
  parish.shared.lapse();
  parish.shared.away = false;
  parish.until([&] { return parish.shared.leader.epoch > epoch; });
  a->succeed(), b->succeed();
  CHECK(!a->hear<Done>().failed);
  CHECK(!b->hear<Done>().failed);
}

TEST_CASE("elected session: a round whose note found the entry lost is given out all the same") {
  Parish parish;
  parish.shared.lapses_at_record = true;
  auto a = parish.joined(rules_for(2, 2), "a"), b = parish.joined(rules_for(2, 2), "b");
  settle_into({a.get(), b.get()}, 2);
  CHECK(!parish.shared.lapses_at_record);
  CHECK(!parish.shared.record.empty());
}

TEST_CASE("elected session: a register that has lost all gets the record of the running world") {
  Parish parish;
  auto a = parish.joined(rules_for(1, 1), "a");
  settle_into({a.get()}, 1);
  const std::string recorded = parish.shared.record;
  parish.shared.record.clear();
  parish.shared.leader.value.clear();
  parish.until([&] { return !parish.shared.record.empty(); });
  CHECK(parish.shared.record == recorded);
  CHECK(a->told.empty());
}

TEST_CASE("elected session: a register that answers no more holds up no end") {
  for (const bool succeeds : {true, false}) {
    Parish parish;
    auto a = parish.joined(rules_for(1, 1), "a");
    settle_into({a.get()}, 1);
    parish.shared.mute = true;
    if (succeeds) {
      a->succeed();
      CHECK(!a->hear<Done>().failed);
    }
    a->close();
  }
}

TEST_CASE("elected session: a leader that does not answer is tried less and less often") {
  Parish parish;
  boost::asio::ip::tcp::acceptor port(parish.network.loop,
                                      {boost::asio::ip::address_v4::loopback(), 0});
  int tries = 0;
  const Then accept = [&] {
    port.async_accept([&](const auto& error, const auto&) {
      if (error) return;
      ++tries;
      accept();
    });
  };
  accept();
  parish.shared.leader = {
      encode_entry({"127.0.0.1", port.local_endpoint().port(), "of one that is gone"}), 5};
  auto a = parish.agent(rules_for(1, 1), 10s);
  a->join(1, "a");
  // At the beginning, and after one, three and seven seconds. A busy machine looks less often.
  parish.pass(3500ms);
  CHECK(tries >= 2);
  CHECK(tries <= 6);
  CHECK(parish.shared.reads <= 16);  // each half second, and with each try
  parish.shared.lapse();
  settle_into({a.get()}, 1);
}

TEST_CASE(
    "elected session: a newcomer whom a register elects that forgot all learns from members") {
  Parish parish;
  parish.shared.leader.epoch = 500;
  auto a = parish.leader(rules_for(2, 2));
  auto b = parish.joined(rules_for(2, 2), "b");
  settle_into({a.get(), b.get()}, 2);
  a.reset();
  CHECK(b->hear<Restart>().cause.kind == Cause::Kind::CoordinatorLost);
  // What is lost is the register, and the first who comes is one who knows of no earlier epoch.
  parish.shared.record.clear();
  parish.shared.leader = {};
  auto c = parish.joined(rules_for(2, 2), "c");
  parish.until([&] { return parish.shared.leader.epoch > 0; });
  b->join();
  const Round round = b->round();
  CHECK(round.epoch > 501);
  CHECK(c->round().epoch == round.epoch);
}

TEST_CASE("elected session: whoever gets the port of a leader that died ends no job") {
  for (const auto kind :
       {Stranger::Kind::Proxy, Stranger::Kind::OtherSecret, Stranger::Kind::OtherJob}) {
    CAPTURE(static_cast<int>(kind));
    Parish parish;
    auto a = parish.leader(rules_for(1, 2));
    auto b = parish.joined(rules_for(1, 2), "b");
    settle_into({a.get(), b.get()}, 2);
    a.reset();
    Stranger stranger(parish.network, parish.shared.leader.value, kind);
    CHECK(b->hear<Restart>().cause.kind == Cause::Kind::CoordinatorLost);
    b->join();
    parish.until([&] { return stranger.met >= 2 || !b->told.empty(); });
    CHECK(b->told.empty());
    parish.shared.lapse();
    settle_into({b.get()}, 1);
  }
}

TEST_CASE("elected session: a refusal at the place of a leader that lives on is final") {
  for (const auto kind : {Stranger::Kind::OtherSecret, Stranger::Kind::OtherJob}) {
    CAPTURE(static_cast<int>(kind));
    Parish parish;
    auto a = parish.leader(rules_for(1, 2));
    auto b = parish.joined(rules_for(1, 2), "b", 500ms);
    settle_into({a.get(), b.get()}, 2);
    a.reset();
    // Its entry stands on for longer than any that nobody renews.
    Stranger stranger(parish.network, parish.shared.leader.value, kind);
    CHECK(b->hear<Restart>().cause.kind == Cause::Kind::CoordinatorLost);
    b->join();
    const auto lost = b->hear<Lost>();
    CHECK(!lost.requeue);
    CHECK(lost.why.find("the job \"b\"") != std::string::npos);
    CHECK(stranger.met >= 2);
    // And for a newcomer at once: it is most likely started wrongly.
    auto c = parish.joined(rules_for(1, 2), "c");
    CHECK(c->hear<Lost>().why.find("the job \"b\"") != std::string::npos);
  }
}

namespace {

/// a coordinates, b leaves and saves, c waits for that.
struct Vestry {
  explicit Vestry(Duration grace_of_b) {
    Rules rules = rules_for(1, 3);
    rules.last_call_timeout = 10ms;
    a = parish.agent(rules, 30ms);
    a->join(1, "a");
    parish.until([this] { return parish.shared.record.size() > 0; });
    b = parish.agent(rules, 30ms), c = parish.agent(rules, 30ms);
    b->grace = grace_of_b;
    for (auto* agent : {b.get(), c.get()}) agent->join(1, agent == b.get() ? "b" : "c");
    while (size < 3) {
      if (!next(*a)) a->join(1, "a");
    }
    for (auto* agent : {b.get(), c.get()}) {
      while (agent->number < a->number) {
        if (!next(*agent)) agent->join();
      }
    }
    b->session->report(Leaving{"preempted"});
    CHECK(c->hear<Restart>().cause.kind == Cause::Kind::NodeLeft);
  }
  /// A round, or that it is over.
  bool next(TestAgent& agent) {
    parish.until([&agent] { return !agent.told.empty(); });
    if (std::holds_alternative<Restart>(agent.told.front())) return agent.told.pop_front(), false;
    size = agent.round().group_world_size();
    return true;
  }
  bool records_leavers() { return parish.shared.record.find("leavers") != std::string::npos; }
  void crash() { parish.crash(a); }
  Parish parish;
  std::unique_ptr<TestAgent> a, b, c;
  int size = 0;
};

}  // namespace

TEST_CASE("elected session: a leader that leaves a broken world is no member of what is left") {
  Parish parish;
  Rules rules = rules_for(1, 2, 3);
  rules.last_call_timeout = 100ms;
  auto a = parish.agent(rules, 30ms), b = parish.agent(rules, 30ms);
  a->join(1, "a");
  parish.until([&] { return parish.shared.record.size() > 0; });
  b->grace = 1h;  // it saves
  b->join(1, "b");
  while (a->round().group_world_size() < 2) {
    a->hear<Restart>();
    a->join(1, "a");
  }
  b->round();
  a->fail(7);
  a->hear<Restart>(), b->hear<Restart>();
  a->join(1, "a");
  parish.until([&] { return parish.shared.record.contains("\"stopping\":1,"); });
  a->session->report(Leaving{"preempted"});  // and at once, as its workers have ended
  a->session->close([] {});
  parish.until([&] { return parish.shared.record.contains("\"left\":true"); });
  b->join(1, "b");  // has saved
  settle_into({b.get()}, 1);
}

TEST_CASE(
    "elected session: a successor does not wait for those of whom it is recorded that they "
    "have left") {
  Vestry vestry(1h);
  vestry.parish.until([&] { return vestry.records_leavers(); });
  vestry.b->close();
  vestry.parish.until([&] { return !vestry.records_leavers(); });
  vestry.crash();
  vestry.c->join(1, "c");
  settle_into({vestry.c.get()}, 1);
}

TEST_CASE("elected session: a node that leaves before it has joined a new leader is waited for") {
  Vestry vestry(1h);
  // What it has told a is forgotten; another one knows nothing of it, until it says so there.
  vestry.crash();
  vestry.parish.shared.record.clear();
  TestAgent& c = *vestry.c;
  auto late = vestry.parish.agent(rules_for(1, 3), 30ms);
  vestry.parish.until([&] { return !vestry.parish.shared.leader.value.empty(); });
  late->session->report(Leaving{"preempted", 1h});
  vestry.parish.pass(50ms);
  c.join(1, "c");
  vestry.parish.pass(150ms);
  CHECK(c.told.empty());
  late->close();
  settle_into({&c}, 1);
}

namespace {

/// A member that joins, notes whether it is told to stop, and looks for no other coordinator.
std::shared_ptr<net::Link> left_behind(Parish& parish, const Rules& rules, Duration grace,
                                       bool& is_to_stop) {
  const auto place = decode_entry(parish.shared.leader.value).value();
  boost::asio::ip::tcp::socket socket(parish.network.loop);
  socket.connect({boost::asio::ip::address_v4::loopback(), place.port});
  auto link = std::make_shared<net::Link>(std::move(socket), net::make_sealer("s"),
                                          net::Link::Side::Connector);
  const auto hear = [&is_to_stop](const std::string& text) {
    const auto message = decode_from_coordinator(text).value();
    const auto* told = std::get_if<Push>(&message);
    is_to_stop = is_to_stop || (told != nullptr && std::holds_alternative<Restart>(*told));
  };
  link->start({hear, [](const Error&) {}});
  link->send(encode(FromAgent(Hello{"job"})));
  Join join;
  join.node.id = "b";
  join.node.store_port = 29123;
  join.node.grace = grace;
  join.rules = rules;
  link->send(encode(FromAgent(join)));
  return link;
}

}  // namespace

TEST_CASE("elected session: a round that was recorded, and never given out, is not waited for") {
  Parish parish;
  Rules rules = rules_for(2, 3);
  // Long enough for the third on any machine: a round of two would be swallowed for ever.
  rules.last_call_timeout = 500ms;
  auto a = parish.agent(rules, 30ms);
  parish.shared.swallows_answers = true;
  a->join(1, "a");
  parish.until([&] { return a->progress.present == 1; });
  auto b = parish.joined(rules, "b"), c = parish.joined(rules, "c");
  parish.until([&] { return parish.shared.record.find(R"("nodes":3)") != std::string::npos; });
  parish.shared.swallows_answers = false;
  parish.crash(a);
  settle_into({b.get(), c.get()}, 2);
  CHECK(b->number == 2);
}

// What it says of the last world would be forgotten as the leader takes over the record of it, and
// the job would wait for a member that is there, for as long as its group might be at work.
TEST_CASE("elected session: a member that finds its leader before that has heard is not awaited") {
  Parish parish;
  Rules rules = rules_for(2, 3);
  rules.last_call_timeout = 10ms;
  auto a = parish.leader(rules);
  auto b = parish.agent(rules, 30ms), c = parish.agent(rules, 30ms);
  b->grace = c->grace = 2h;
  b->join(1, "b"), c->join(1, "c");
  settle_into({a.get(), b.get(), c.get()}, 3);
  parish.shared.keeps_victories = true;
  parish.crash(a);
  for (TestAgent* agent : {b.get(), c.get()}) {
    agent->hear<Restart>();
    agent->join(1, agent == b.get() ? "b" : "c");
  }
  parish.until([&] { return !parish.shared.victories.empty(); });
  parish.network.loop.run_for(200ms);  // as a rule the other one has come by then
  parish.shared.keeps_victories = false;
  for (const auto& victory : std::exchange(parish.shared.victories, {})) victory();
  settle_into({b.get(), c.get()}, 2);
}

// Group rank 0 has ended with the coordinator, and its port is free, here on the successor's own
// machine. But b has not said that it is on this one: it may be cut off.
TEST_CASE("elected session: members elsewhere may be saving when the coordinator's node has died") {
  Parish parish;
  Rules rules = rules_for(1, 2);
  rules.progress_interval = 10ms;
  rules.last_call_timeout = 1h;
  auto a = parish.leader(rules);
  bool is_to_stop = false;
  const auto b = left_behind(parish, rules, 2h, is_to_stop);
  settle_into({a.get()}, 2);
  parish.crash(a);
  auto c = parish.joined(rules, "c"), d = parish.joined(rules, "d");
  const auto waits_for_them = [&c] {
    return c->progress.text.find("waiting for 2 nodes to stop their workers, at most 2 h") !=
           std::string::npos;
  };
  parish.until(waits_for_them);
  CHECK(c->told.empty());
}

// Group rank 0's port is free, here on the successor's own machine: without a word of what is left
// that would be the end of the wait.
TEST_CASE("elected session: whom a leader has left behind is waited for, whoever else has ended") {
  Parish parish;
  Rules rules = rules_for(2, 2);
  rules.progress_interval = 10ms;
  auto a = parish.leader(rules);
  bool is_to_stop = false;
  const auto b = left_behind(parish, rules, 2h, is_to_stop);
  settle_into({a.get()}, 2);
  a->session->report(Leaving{"preempted"});
  parish.until([&] { return is_to_stop; });
  a->close();
  auto c = parish.joined(rules, "c"), d = parish.joined(rules, "d");
  parish.until([&] { return c->progress.present == 2; });
  c->progress = {};
  parish.until([&] { return c->progress.present == 2; });
  const std::string& text = c->progress.text;
  CAPTURE(text);
  CHECK(text.find("waiting for 1 node to stop its workers, at most 2 h") != std::string::npos);
}
