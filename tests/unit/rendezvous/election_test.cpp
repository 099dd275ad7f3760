// SPDX-License-Identifier: Apache-2.0
// The election against a model of a register: all orders in which requests are carried out, answers
// come, are lost or come late, leases lapse, others lead, and this process is frozen.
#include "rendezvous/election/election.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace std::chrono_literals;
using Request = Election::Request;
using Role = Election::Role;

namespace {

constexpr Duration kLease = 12s;

// Millions of these hold: doctest's own checks take longer than what they check.
void must(bool holds, const char* what) {
  if (!holds) FAIL_CHECK(what);
}

/// One entry. What was written is never answered before it was written.
struct ElectionRegister {
  std::string value;
  std::int64_t epoch = 0, count = 0;
  TimePoint until;
  bool is_held(TimePoint now) const { return !value.empty() && now < until; }
  void take(const std::string& by, std::int64_t above, TimePoint now) {
    value = by;
    epoch = count = std::max(count, above) + 1;
    until = now + kLease;
  }
};

/// Obeys an election as the locator does, and checks whatever must hold at any time.
class Agent {
 public:
  void look() {
    if (election.is_entitled(now)) return;
    election.look(now);
    asks = true;
    step();
  }
  void want_record() {
    if (!coordinates || election.role() != Role::Leader || recording) return;
    recording = true;
    election.record();
    step();
  }
  void hear_of(std::int64_t epoch) {
    election.hear_of(epoch);
    step();
  }
  void step_down() {
    if (election.role() != Role::Leader) return;
    election.step_down("doubt");
    step();
  }
  void yield() {
    election.yield(kLease, now);
    step();
  }
  void pass(Duration time) {
    now += time;
    const auto due = election.due();
    if (due && *due <= now) step();
  }

  // The register carries out what is under way; the answer is another matter.
  void carry_out() {
    if (!under_way || carried_out) return;
    carried_out = true;
    const bool ours = reg.is_held(now) && reg.value == value && !value.empty();
    done = ours;
    switch (*under_way) {
      case Request::Read:
        found.reset();
        if (reg.is_held(now)) found = LeaderLease::Leader{reg.value, reg.epoch};
        break;
      case Request::Campaign:
        if (!reg.is_held(now)) reg.take(value, election.highest_known(), now);
        found = LeaderLease::Leader{reg.value, reg.epoch};
        break;
      case Request::Renew:
        if (ours) reg.until = now + kLease;
        break;
      case Request::Record:
        if (ours) record_written = true;
        break;
      case Request::Resign:
        if (ours) reg.value.clear();
        break;
    }
  }

  void serve() {
    carry_out();
    answer(true);
  }
  void answer(bool well) {
    if (!under_way) return;
    const Request request = *under_way;
    well = well && carried_out;
    const Error lost{Code::Io, "no answer"};
    under_way.reset();
    if (request == Request::Read) {
      election.read(
          well ? Result<std::optional<LeaderLease::Leader>>(found) : std::unexpected(lost), now);
    } else if (request == Request::Campaign) {
      const bool ours = well && found->value == value;
      election.campaigned(well ? Result<LeaderLease::Leader>(*found) : std::unexpected(lost), ours,
                          false, now);
    } else if (request == Request::Resign) {
      election.resigned(now);
    } else {
      const auto still = well ? Result<bool>(done) : std::unexpected(lost);
      request == Request::Renew ? election.renewed(still, now) : election.recorded(still, now);
    }
    step();
  }

  void step() {
    for (auto orders = election.take(); !orders.empty(); orders = election.take()) {
      for (const auto& order : orders) std::visit([this](const auto& each) { obey(each); }, order);
    }
    if (const auto request = election.next(now)) send(*request);
    must(!election.next(now), "!election.next(now)");
  }

  ElectionRegister reg;
  TimePoint now{1000s};
  Election election{kLease};
  std::optional<Request> under_way;
  bool asks = false, awaits = false, coordinates = false, recording = false, record_written = false,
       doubts = false;
  std::int64_t followed = 0, led = 0;
  int resignations = 0;

 private:
  void send(Request request) {
    must(!under_way, "!under_way");
    under_way = request;
    carried_out = false;
    if (request != Request::Campaign) return;
    must(coordinates, "coordinates");
    value = "us" + std::to_string(++campaigns);
  }

  void obey(const Election::Follow& follow) {
    must(!coordinates, "!coordinates");
    followed = follow.leader.epoch;
    asks = false;
  }
  void obey(const Election::Await&) { awaits = true; }
  void obey(const Election::OpenCoordinator&) {
    must(!coordinates, "!coordinates");
    coordinates = true;
  }
  void obey(const Election::CloseCoordinator&) {
    must(coordinates, "coordinates");
    must(election.role() == Role::Follower, "election.role() == Role::Follower");
    coordinates = false;
  }
  void obey(const Election::Lead& lead) {
    must(coordinates, "coordinates");
    must(lead.again == leads, "lead.again == leads");
    must(lead.entry.epoch > led, "lead.entry.epoch > led");
    leads = true;
    led = lead.entry.epoch;
    asks = doubts = false;
  }
  void obey(const Election::Trust&) {
    must(coordinates, "coordinates");
    asks = doubts = false;
  }
  void obey(const Election::Doubt&) {
    must(coordinates, "coordinates");
    doubts = true;
  }
  void obey(const Election::StepDown&) {
    must(coordinates, "coordinates");
    must(leads, "leads");
    coordinates = leads = recording = doubts = false;
  }
  void obey(const Election::Recorded&) {
    must(coordinates, "coordinates");
    must(record_written, "note_written");
    recording = record_written = false;
  }
  void obey(const Election::Resigned&) { ++resignations; }
  void obey(const Election::Fail&) { asks = false; }

  std::string value;
  int campaigns = 0;
  bool carried_out = false, done = false, leads = false;
  std::optional<LeaderLease::Leader> found;
};

/// Of `most` possibilities the next one.
using Choice = std::function<int(int most)>;

/// What may happen; the last two tamper with the register.
const std::vector<std::function<void(Agent&)>> kEventTable{
    [](Agent& agent) { agent.look(); }, [](Agent& agent) { agent.carry_out(); },
    [](Agent& agent) { agent.answer(true); }, [](Agent& agent) { agent.answer(false); },
    [](Agent& agent) { agent.pass(kLease / 7); }, [](Agent& agent) { agent.pass(kLease / 2); },
    [](Agent& agent) { agent.pass(kLease * 5 / 2); },  // frozen, or suspended
    [](Agent& agent) { agent.want_record(); }, [](Agent& agent) { agent.step_down(); },
    // somebody else leads, as soon as that is possible
    [](Agent& agent) {
      agent.reg.is_held(agent.now) ? void() : agent.reg.take("them", 0, agent.now);
    },
    // and says goodbye
    [](Agent& agent) { agent.reg.value = agent.reg.value == "them" ? "" : agent.reg.value; },
    [](Agent& agent) { agent.hear_of(agent.reg.epoch + 3); },
    [](Agent& agent) { agent.election.reject(agent.followed); },
    [](Agent& agent) { agent.yield(); },            // nobody has come, or many have been lost
    [](Agent& agent) { agent.reg.value.clear(); },  // somebody has deleted the entry
    [](Agent& agent) { agent.reg = {}; }};          // the register has been restored from nothing
constexpr int kEvents = 16;

void happen(Agent& agent, int event, bool& tampered) {
  tampered = tampered || event >= kEvents - 2;
  kEventTable[static_cast<std::size_t>(event)](agent);
}

void check_safety(const Agent& agent, bool tampered) {
  if (tampered || !agent.election.is_entitled(agent.now)) return;
  must(agent.reg.is_held(agent.now), "agent.reg.is_held(agent.now)");
  must(agent.reg.value.starts_with("us"), "agent.reg.value.starts_with(\"us\")");
}

// From now on everything works, and nobody else is there.
void check_recovery(Agent& agent) {
  agent.election.reject(0);
  const auto work = [&agent] {
    for (int i = 0; i < 20 && agent.under_way; ++i) agent.serve();
    must(!agent.under_way, "!agent.under_way");
  };
  for (int i = 0; i < 60; ++i) {
    if ((!agent.asks || std::exchange(agent.awaits, false)) && !agent.coordinates) agent.look();
    work();
    agent.pass(kLease / 10);
  }
  work();
  must(agent.election.role() == Role::Leader, "agent.election.role() == Role::Leader");
  must(agent.election.is_entitled(agent.now), "agent.election.is_entitled(agent.now)");
  must(!agent.recording, "!agent.noting");
  must(!agent.asks, "!agent.asks");
  must(!agent.doubts, "!agent.doubts");
  must(agent.election.epoch() >= agent.election.highest_known(),
       "agent.election.epoch() >= agent.election.highest_known()");
}

void run(const Choice& choice, int events) {
  Agent agent;
  bool tampered = false;
  for (int i = 0; i < events; ++i) {
    happen(agent, choice(kEvents), tampered);
    check_safety(agent, tampered);
  }
  check_recovery(agent);
}

/// A leader with its lease, and nothing under way.
void lead(Agent& agent) {
  agent.look();
  for (int i = 0; i < 2; ++i) agent.serve();
  REQUIRE(agent.election.is_entitled(agent.now));
}

}  // namespace

TEST_CASE("election: whatever happens in whatever order, it ends with a leader and its notes") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::minstd_rand random(seed + 1);
    run([&random](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); },
        5 + static_cast<int>(seed % 90));
  }
}

TEST_CASE("election: every order of four events, from a leader with a lease") {
  for (int order = 0; order < kEvents * kEvents * kEvents * kEvents; ++order) {
    Agent agent;
    bool tampered = false;
    lead(agent);
    for (int rest = order, i = 0; i < 4; ++i, rest /= kEvents) {
      happen(agent, rest % kEvents, tampered);
      check_safety(agent, tampered);
    }
    CAPTURE(order);
    check_recovery(agent);
  }
}

TEST_CASE("election: after a freeze the renewal, a look and a campaign do not overlap") {
  Agent agent;
  lead(agent);
  agent.pass(kLease * 2);
  agent.look();
  CHECK(agent.under_way == Request::Renew);
  agent.look();
  agent.serve();  // it has lapsed
  CHECK(agent.doubts);
  CHECK(agent.under_way == Request::Campaign);
  agent.look();
  agent.serve();
  CHECK(agent.election.is_entitled(agent.now));
  CHECK(!agent.asks);
}

TEST_CASE("election: a note that an entry was lost under is recorded under the next one") {
  Agent agent;
  lead(agent);
  agent.want_record();
  CHECK(agent.under_way == Request::Record);
  agent.reg.value.clear();  // somebody has deleted the key
  check_recovery(agent);
}

TEST_CASE("election: a note that is asked for while another is recorded is recorded, too") {
  const TimePoint now{1h};
  Election election(kLease);
  election.look(now);
  REQUIRE(election.next(now) == Request::Read);
  election.read(std::nullopt, now);
  REQUIRE(election.next(now) == Request::Campaign);
  election.campaigned(LeaderLease::Leader{"us", 1}, true, false, now);
  election.record();
  REQUIRE(election.next(now) == Request::Record);
  election.record();
  (void)election.take();
  election.recorded(true, now);
  CHECK(election.take().empty());
  REQUIRE(election.next(now) == Request::Record);
  election.recorded(true, now);
  CHECK(election.take().size() == 1);
  CHECK(!election.next(now));
}

TEST_CASE("election: an answer that is older than the lease proves nothing") {
  Agent agent;
  lead(agent);
  agent.pass(kLease / 3);
  REQUIRE(agent.under_way == Request::Renew);
  agent.carry_out();
  agent.pass(kLease * 2);
  agent.answer(true);
  CHECK(!agent.election.is_entitled(agent.now));
  CHECK(agent.under_way == Request::Renew);
}

TEST_CASE("election: a leader of a register that forgot is elected above what members know") {
  Agent agent;
  lead(agent);
  agent.hear_of(500);
  CHECK(agent.under_way == Request::Read);
  check_recovery(agent);
  CHECK(agent.election.epoch() > 500);
}

TEST_CASE("election: a leader that yields gives the lease back, and waits before it campaigns") {
  Agent agent;
  lead(agent);
  const auto epoch = agent.led;
  agent.yield();
  CHECK(!agent.election.is_entitled(agent.now));
  REQUIRE(agent.under_way == Request::Resign);
  agent.serve();
  CHECK(!agent.reg.is_held(agent.now));
  SUBCASE("if nobody is elected, it goes on under a new epoch") {
    const TimePoint end = agent.now + kLease;
    while (agent.now < end) {
      CHECK(agent.under_way != Request::Campaign);
      if (agent.under_way) agent.serve();
      agent.pass(kLease / 24);
    }
    REQUIRE(agent.under_way == Request::Campaign);
    agent.serve();
    CHECK(agent.coordinates);
    CHECK(agent.election.is_entitled(agent.now));
    CHECK(agent.led > epoch);
  }
  SUBCASE("if somebody is elected, it steps down at once") {
    agent.reg.take("them", 0, agent.now);
    agent.pass(1s);
    REQUIRE(agent.under_way == Request::Read);
    agent.serve();
    CHECK(!agent.coordinates);
    CHECK(agent.election.role() == Role::Follower);
  }
  SUBCASE("whoever asks for the leader meanwhile does not end the pause") {
    agent.look();
    CHECK(agent.under_way == Request::Read);
    agent.serve();
    CHECK(!agent.under_way);
    CHECK(agent.asks);
    agent.reg.take("them", 0, agent.now);
    agent.pass(1s);
    for (int i = 0; i < 2; ++i) agent.serve();
    CHECK(agent.followed == agent.reg.epoch);
  }
  SUBCASE("a register out of reach at the end of the pause makes it doubt, as ever") {
    agent.pass(kLease);
    for (int i = 0; i < 3; ++i) agent.answer(false), agent.pass(1s);
    CHECK(agent.doubts);
  }
}

TEST_CASE("election: a renewal under way does not undo that a leader yields") {
  Agent agent;
  lead(agent);
  agent.pass(kLease / 3);
  REQUIRE(agent.under_way == Request::Renew);
  agent.carry_out();
  agent.yield();
  agent.answer(true);
  CHECK(!agent.election.is_entitled(agent.now));
  CHECK(agent.under_way == Request::Resign);
}

TEST_CASE("election: an epoch beyond all counting is not believed") {
  Agent agent;
  lead(agent);
  agent.hear_of(std::int64_t{1} << 62);
  CHECK(!agent.under_way);
  check_recovery(agent);
}

/// A leader that has retired and wants its last word to be recorded; nothing has come of that yet.
void say_last_word(Agent& agent) {
  lead(agent);
  agent.want_record();
  agent.election.retire();
  agent.election.resign(true);
  agent.step();
  agent.carry_out();
  agent.answer(false);  // of the record before
  agent.record_written = false;
  REQUIRE(agent.under_way == Request::Record);
}

TEST_CASE("election: one that retires sends the last word and gives the lease back, nothing else") {
  Agent agent;
  say_last_word(agent);
  agent.serve();
  CHECK(agent.record_written);
  CHECK(agent.under_way == Request::Resign);
  agent.serve();
  CHECK(!agent.reg.is_held(agent.now));
  agent.look();
  agent.pass(kLease * 3);
  CHECK(!agent.under_way);
}

TEST_CASE("election: a campaign that is won after the end gives the entry back at once") {
  Agent agent;
  agent.look();
  agent.serve();
  REQUIRE(agent.under_way == Request::Campaign);
  agent.election.retire();
  CHECK(agent.election.is_campaigning());
  SUBCASE("won") {
    agent.serve();
    REQUIRE(agent.under_way == Request::Resign);
    CHECK(agent.resignations == 0);
    agent.serve();
    CHECK(!agent.reg.is_held(agent.now));
  }
  SUBCASE("lost") {
    agent.reg.take("them", 0, agent.now);
    agent.serve();
    CHECK(agent.reg.value == "them");
  }
  SUBCASE("not answered") {
    agent.answer(false);
  }
  CHECK(agent.resignations == 1);
  agent.pass(kLease * 3);
  CHECK(!agent.under_way);
}

TEST_CASE("election: the last word is tried until it is recorded or the lease ends") {
  Agent agent;
  say_last_word(agent);
  SUBCASE("a register that comes back within the lease gets it") {
    for (int i = 0; i < 5; ++i) {
      agent.answer(false);
      CHECK(!agent.under_way);
      agent.pass(kLease / 10);
      REQUIRE(agent.under_way == Request::Record);
    }
    agent.serve();
    CHECK(agent.record_written);
    CHECK(agent.under_way == Request::Resign);
  }
  SUBCASE("one that stays away is left when the lease ends") {
    for (int i = 0; i < 1000 && agent.under_way == Request::Record; ++i) {
      agent.answer(false);
      agent.pass(kLease / 50);
    }
    CHECK(agent.under_way == Request::Resign);
    CHECK(agent.now <= agent.election.lease_end() + kLease / 10);
  }
  SUBCASE("a lost entry is nobody's to write beside") {
    agent.reg.take("them", 0, agent.now);
    agent.serve();
    CHECK(!agent.record_written);
    CHECK(agent.under_way == Request::Resign);
  }
}
