// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/discovery/locator.hpp"

#include "core/clock.hpp"
#include "core/file_io.hpp"
#include "core/host.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "net/dialer.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "rendezvous/election/election.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <random>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <variant>

namespace elastrun::rendezvous {

CoordinatorSettings Locator::coordinator() const {
  CoordinatorSettings own;
  own.run_id = settings_.run_id;
  own.start = settings_.start;
  own.rules = settings_.rules;
  own.master_addr = settings_.master_addr;
  own.master_port = settings_.master_port;
  own.heartbeat = settings_.config.keep_alive_interval;
  own.heartbeats_missed = settings_.config.keep_alive_max_attempt;
  return own;
}

void Locator::give(Result<Place> place) {
  boost::asio::post(loop_, [this, alive = lifetime_.token(), place = std::move(place)]() mutable {
    if (!alive) return;
    // Taken out first: the answer may call locate() again, which sets the next one.
    if (const auto answer = std::exchange(answer_, {})) answer(std::move(place));
  });
}

namespace {

constexpr auto kBetweenProbes = std::chrono::seconds(2);

/// Binds to that port of all addresses, for a moment, and without SO_REUSEADDR: with it a port that
/// is held but not listened on would look free (socket(7)). One that was used until a minute ago
/// may still look held, which only costs time.
bool can_bind(const sockaddr* address, socklen_t size) {
  const UniqueFd fd(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && ::bind(fd.get(), address, size) == 0;
}

bool is_free(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (!can_bind(reinterpret_cast<const sockaddr*>(&address), sizeof address)) return false;
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = htons(port);
  if (can_bind(reinterpret_cast<const sockaddr*>(&address6), sizeof address6)) return true;
  return errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;  // a machine without IPv6
}

}  // namespace

PreviousWorldProbe::PreviousWorldProbe(Clock& clock) : clock_(clock), again_(clock.make_alarm()) {}

void PreviousWorldProbe::probe(const RecordedWorld& recorded, Then gone) {
  stop();
  const auto address = net::parse_address(recorded.world.address);
  const bool here =
      recorded.network == own_network() && (address.is_loopback() || net::is_own_address(address));
  if (!here || address.is_unspecified() || recorded.world.port == 0) return;
  port_ = recorded.world.port;
  gone_ = std::move(gone);
  // Not inside this call.
  again_->arm(clock_.now(), [this] { look(); });
}

void PreviousWorldProbe::look() {
  if (!is_free(port_)) {
    again_->arm(clock_.now() + kBetweenProbes, [this] { look(); });
  } else if (const auto gone = std::exchange(gone_, {})) {
    gone();
  }
}

std::string PreviousWorldProbe::own_network() {
  // The number of a network namespace alone repeats on other machines, and here after the next
  // boot.
  const auto id = read_kernel_file("/proc/sys/kernel/random/boot_id");
  const auto boot = trim(id);
  std::array<char, 64> space{};
  const ssize_t size = ::readlink("/proc/self/ns/net", space.data(), space.size());
  return fmt::format("{} {}", boot,
                     std::string_view(space.data(), static_cast<std::size_t>(size < 0 ? 0 : size)));
}

namespace {

// Within it most worlds that break up are replaced by the next one, which is recorded anyway.
constexpr auto kBreakUp = std::chrono::milliseconds(500);

// Of the unheard members of a world that has ended. They may be cut off and saving, unless they are
// on this machine: there a member notices at once, and comes.
Duration time_to_end(const WorldRecord& world, Duration isolation) {
  if (world.local) return kTimeToFollow;
  return world.at_work > Duration::zero() ? world.at_work : isolation;
}

std::pair<int, int> counts_of(const Survivors& survivors) {
  return {survivors.members, survivors.at_work.count};
}

}  // namespace

WorldRegister::WorldRegister(Clock& clock)
    : clock_(clock), nonce_(random_text(16)), probe_(clock), look_(clock.make_alarm()) {}

void WorldRegister::record(const WorldRecord& world, Then recorded) {
  // Assigned as a whole, so that verdict and break-up of the world before do not stay beside it.
  latest_ = {world, nonce_, PreviousWorldProbe::own_network()};
  recorded_ = std::move(recorded);
  tells_of_end_ = false;
}

void WorldRegister::conclude(const Done& verdict) {
  recorded_ = nullptr;
  latest_.by = nonce_;
  latest_.network = PreviousWorldProbe::own_network();
  latest_.verdict = verdict;
}

void WorldRegister::watch_survivors(const Coordinator& coordinator, Then write) {
  // One look at a time: a world that breaks up tells of each member that goes, and each record is a
  // write to the register.
  if (!has_any() || std::exchange(looks_, true)) return;
  look_->arm(clock_.now() + kBreakUp, [this, &coordinator, write = std::move(write)] {
    looks_ = false;
    const auto survivors = survivors_of(coordinator);
    // Only where a successor would decide otherwise by it: etcd keeps a revision of every write
    // until it is compacted.
    if (survivors && counts_of(*survivors) != recorded_survivors_) write();
    // Members that were lost are waited for: no message tells when that is over.
    const bool ended = survivors && survivors->at_work.count == 0;
    if (coordinator.is_needed() && !ended) watch_survivors(coordinator, write);
  });
}

std::string WorldRegister::text(const Coordinator& coordinator) {
  const TimePoint now = clock_.now();
  const StoppingGroups stopping = coordinator.stopping_groups();
  RecordedWorld recorded = latest_;
  const auto survivors = survivors_of(coordinator);
  recorded_survivors_ = survivors.transform(counts_of);
  if (!recorded.survivors) recorded.survivors = survivors;
  if (stopping.are_at_work(now)) recorded.leavers = stopping;
  return encode_record(recorded, now);
}

void WorldRegister::inherit(const std::string& record, Coordinator& coordinator,
                            Duration isolation) {
  // A world of ours, from when we were elected before, is not the last one any more.
  latest_ = {};
  inherited_ = record;
  const TimePoint now = clock_.now();
  const auto recorded = decode_record(record, now);
  tells_of_end_ = recorded && recorded->verdict;
  if (!recorded) return;
  const WorldRecord& last = recorded->world;
  InheritedWorld world{{last.id, 0, last.nodes}, now};
  if (recorded->survivors && !recorded->verdict) {
    // A leader that left has counted itself out; one that died took its own node along, as a rule.
    world.fence.expect(last.id, *recorded->survivors, recorded->left ? 0 : 1);
  } else {
    // That world outlives its coordinator. One of its members may stay away: as a rule it is that
    // coordinator's own node.
    world.fence.expect(last.id, last.nodes, 1, {last.members.begin(), last.members.end()});
  }
  world.fence.inherit(recorded->leavers);
  if (recorded->verdict) {
    if (recorded->leavers.count > 0) coordinator.inherit(world);
    return coordinator.conclude(last.id, *recorded->verdict);
  }
  if (recorded->survivors) return coordinator.inherit(world);
  world.until = now + isolation;
  coordinator.inherit(world);
  // On the leader's machine a free port proves the end. From elsewhere only a member or
  // isolation_timeout does: a firewall refuses connections just as a dead host.
  probe_.probe(*recorded, [&coordinator, left = time_to_end(recorded->world, isolation)] {
    coordinator.disinherit(left);
  });
}

void WorldRegister::stop() {
  recorded_ = nullptr;
  look_->disarm();
  looks_ = false;
  probe_.stop();
}

namespace {

namespace ip = boost::asio::ip;

// Before the place of a leader that did not answer is tried again, at first and at most: all agents
// of a large job wait for the same end.
constexpr Duration kFirstRetry = std::chrono::seconds(1), kLongestRetry = std::chrono::seconds(5);

// In which all who are cut off from a leader notice that, and find that it does not answer. `ttl`:
// of its lease.
Duration yield_pause(const SessionSettings& settings, Duration ttl) {
  return settings.time_to_stop() - settings.grace + ttl;
}

// The address under which other machines find a coordinator in this process. `seen`: of the last
// coordinator, as a hint at the network in question. Fails if there is none and others may come.
Result<std::string> advertised_address(const SessionSettings& settings, const LeaderLease& lease,
                                       const ip::address& seen) {
  if (!settings.config.advertise.empty()) return settings.config.advertise;
  ip::address own = lease.own_address();
  // A register on this machine is reached over loopback, which means nothing to other machines.
  if (own.is_unspecified() || own.is_loopback()) {
    const auto outward = net::outward_address(seen);
    const bool alone = settings.rules.max_nodes == 1;
    if (!outward && !alone) return std::unexpected(outward.error());
    own = outward ? *outward : ip::address(ip::address_v4::loopback());
  }
  return own.to_string();
}

// Election has the states. What ends or interrupts the time as coordinator, and who asks for it:
//
//   retire            the session: this node goes        then hand_over, once all have saved
//   hand_over         retire                             then give_lease_back, with what is left
//   end_job           hand_over, after the last word     then give_lease_back, with the verdict
//   end_candidacy     hand_over of one not elected       a lease that comes yet is given back
//   let_others_lead   no agent comes, or most are lost   decides nothing for yield_pause
//   stop_world        its lease cannot be renewed        members stop; it stays the coordinator
//   obey(StepDown)    the election: another one leads    agents look for that one
class ElectedLocator final : public Locator, private CoordinatorOwner {
 public:
  ElectedLocator(boost::asio::io_context& loop, Clock& clock,
                 std::shared_ptr<const net::Sealer> sealer, std::unique_ptr<LeaderLease> lease,
                 SessionSettings settings)
      : Locator(loop, clock, std::move(sealer), std::move(settings)),
        leader_lease_(std::move(lease)),
        due_(clock.make_alarm()),
        doubt_(clock.make_alarm()),
        isolation_(
            std::make_unique<PauseTolerantAlarm>(clock, settings_.config.keep_alive_interval)),
        look_(clock.make_alarm()),
        arrivals_(clock.make_alarm()),
        election_(leader_lease_->ttl()),
        records_(clock) {}

  bool elects() const override { return true; }
  bool serves_others() const override { return leads() && host_->serves_others(); }
  void on_moved(Then moved) override { moved_ = std::move(moved); }

  void accept(const Place&) override { retry_after_ = kFirstRetry; }
  void reject(const Place& place) override { election_.reject(place.epoch); }

  void learn(std::int64_t epoch, int nodes) override {
    nodes_ = nodes;
    election_.hear_of(epoch);
  }

  void cancel() override {
    Locator::cancel();
    election_.cancel();
    stop_looking();
  }

  void retire(const std::string& why, Duration limit, Then retired) override {
    retiring_ = true;
    cancel();
    if (!leads() || why.empty()) return hand_over(why, limit, std::move(retired));
    // A successor would know nothing of those who have said goodbye and are saving still.
    host_->hold(true);
    host_->await_stopping_groups([this, alive = lifetime_.token(), why, limit, retired] {
      if (alive) hand_over(why, limit, retired);
    });
  }

 private:
  void look() override {
    // A leader does not ask the register about itself: it may be cut off from that, and is entitled
    // all the same until its lease ends.
    if (election_.is_entitled(clock_.now())) return give(own_place());
    election_.look(clock_.now() + jitter());
    step();
  }

  void hand_over(const std::string& why, Duration limit, Then retired) {
    disarm();
    election_.retire();
    if (!leads()) return end_candidacy(std::move(retired));
    if (why.empty()) {
      // First the last word, then the entry: until then agents still find us by it.
      return host_->retire(why, true, limit, [this, retired = std::move(retired)]() mutable {
        end_job(std::move(retired));
      });
    }
    // The others find the place free when they come.
    const Survivors survivors = host_->survivors();
    // A record of a world that may be at work has to outlive this leader: a successor without it
    // would form a second world.
    forget_ = is_forgettable() && survivors.at_work.count == 0;
    const bool noteworthy = !forget_ && is_forgettable() && records_.has_any();
    if (noteworthy) records_.leave(survivors);
    give_lease_back(noteworthy, [this, why, limit, retired = std::move(retired)]() mutable {
      host_->retire(why, true, limit, std::move(retired));
    });
  }

  // What the election asks for, and what it orders

  bool leads() const { return election_.role() == Election::Role::Leader; }

  void step() {
    // Until none is left: to obey one, as OpenCoordinator, may give others.
    for (auto orders = election_.take(); !orders.empty(); orders = election_.take()) {
      for (const Election::Order& order : orders) {
        std::visit([this](const auto& each) { obey(each); }, order);
      }
    }
    if (const auto request = election_.next(clock_.now())) send(*request);
    const auto due = election_.due();
    if (!due) return due_->disarm();
    due_->arm(*due, [this] { step(); });
  }

  // Each answer is told to the election, which then says how to go on.
  template <class Told>
  auto then(Told told) {
    return [this, alive = lifetime_.token(), told = std::move(told)](auto&&... answer) {
      if (!alive) return;
      told(std::forward<decltype(answer)>(answer)...);
      step();
    };
  }

  void send(Election::Request request) {
    switch (request) {
      case Election::Request::Read:
        return leader_lease_->read(then([this](Result<std::optional<LeaderLease::Leader>> found) {
          if (found && *found) raise_epoch(**found);
          election_.read(std::move(found), clock_.now());
        }));
      case Election::Request::Campaign:
        return campaign();
      case Election::Request::Renew:
        return leader_lease_->renew(
            then([this](const Result<bool>& still) { election_.renewed(still, clock_.now()); }));
      case Election::Request::Record:
        return leader_lease_->record(records_.text(*host_), then([this](const Result<bool>& still) {
                                       election_.recorded(still, clock_.now());
                                     }));
      case Election::Request::Resign:
        return leader_lease_->release(std::exchange(forget_, false),
                                      then([this] { election_.resigned(clock_.now()); }));
    }
  }

  void campaign() {
    // Under a new name each time: an entry of ours that is left over must not be taken for it.
    value_ = encode_entry({own_text_, host_->port(), random_text(16), election_.highest_known()});
    leader_lease_->claim(value_, then([this](Result<LeaderLease::Leader> entry) {
                           if (entry) raise_epoch(*entry);
                           const bool ours = entry && entry->value == value_;
                           // Our entry beside another leader's record: that one was elected, formed
                           // a world and went, all while we did not look.
                           const bool strange = ours && records_.is_strange(entry->record);
                           election_.campaigned(std::move(entry), ours, strange, clock_.now());
                         }));
  }

  void obey(const Election::Follow& follow) {
    stop_looking();
    auto place = decode_entry(follow.leader.value);
    if (!place) return give(std::unexpected(place.error()));
    seen_ = net::parse_address(place->address);
    give(Place{{place->address, place->port}, follow.leader.epoch, false});
  }

  // Polls: the entry of a leader that has died lapses without a word, and shared file systems do
  // not report changes made on other machines (inotify(7)). Now and then the leader is tried again:
  // it may answer after all.
  void obey(const Election::Await&) {
    const TimePoint now = clock_.now();
    if (!retry_at_) {
      retry_at_ = now + retry_after_;
      retry_after_ = std::min<Duration>(retry_after_ * 2, kLongestRetry);
    }
    const auto pause =
        std::min<Duration>(leader_lease_->ttl() / 10, std::chrono::milliseconds(500));
    look_->arm(std::min(now + pause + 4 * jitter(), *retry_at_), [this] {
      if (retry_at_ && clock_.now() >= *retry_at_) {
        retry_at_.reset();
        election_.reject(0);
      }
      election_.look(clock_.now());
      step();
    });
  }
  void stop_looking() {
    look_->disarm();
    retry_at_.reset();
  }
  // Agents that start, or see the same leader go, come one after the other: most of them then find
  // a leader.
  Duration jitter() {
    const auto most =
        std::min<Duration>(std::chrono::microseconds(250) * (nodes_ - 1), std::chrono::seconds(1));
    return most * std::uniform_int_distribution<int>(0, 1000)(random_) / 1000;
  }

  void obey(const Election::OpenCoordinator&) {
    stop_looking();
    auto text = advertised_address(settings_, *leader_lease_, seen_);
    if (!text) return election_.cannot_campaign(text.error());
    own_text_ = std::move(*text);
    CoordinatorSettings own = coordinator();
    // Not elected yet: only the register gives out epochs, with the entry.
    own.epoch = 0;
    own.owner = this;
    auto opened = Coordinator::open(loop_, clock_, sealer_, {.address = "::"}, std::move(own),
                                    settings_.config.coordinator_port);
    if (!opened) return election_.cannot_campaign(opened.error());
    host_ = std::move(*opened);
  }
  void obey(const Election::CloseCoordinator&) { host_.reset(); }

  void obey(const Election::Lead& lead) {
    // One that led before goes on with its own world, whatever the register remembers.
    if (!lead.again) records_.inherit(lead.entry.record, *host_, settings_.isolation());
    host_->set_epoch(election_.epoch());
    log::info("rendezvous", "this node coordinates the job (epoch {}, port {})", election_.epoch(),
              host_->port());
    obey(Election::Trust{});
    // The register may have lost the record with the entry.
    if (lead.again) return records_.has_any() ? record() : void();
    await_arrivals();
  }

  void obey(const Election::Trust&) {
    isolation_->arm(isolated_at(), [this] { stop_world(); });
    end_suspension();
    host_->hold(retiring_ || !election_.is_entitled(clock_.now()));
    if (is_asked()) give(own_place());
  }

  // Perhaps no successor was elected, so agents stay; but a job that needs a decision now had
  // better look for a leader that may decide.
  void obey(const Election::Doubt&) {
    host_->hold(true);
    if (std::exchange(suspended_, true)) return;  // each failed renewal comes here
    doubt_->arm(clock_.now() + leader_lease_->ttl(), [this] {
      suspended_ = false;
      // A world at work needs no decision, and isolation_timeout bounds how long it runs: stay
      // until the register answers.
      if (!host_->is_needed()) return obey(Election::Doubt{});
      election_.step_down("it could not renew its election");
      step();
    });
  }

  void obey(const Election::StepDown& down) {
    log::warning("rendezvous", "this node coordinates the job no more: {}", down.why);
    disarm();
    host_->resign(down.why, true);
    // Not inside a call of the coordinator's.
    auto tell = [this, alive = lifetime_.token(),
                 old = std::shared_ptr<Coordinator>(std::move(host_))] {
      if (alive && !retiring_ && moved_) moved_();
    };
    boost::asio::post(loop_, std::move(tell));
  }

  void obey(const Election::Recorded&) { records_.recorded(); }

  void obey(const Election::Resigned&) {
    if (const auto resigned = std::exchange(resigned_, {})) resigned();
  }

  void obey(const Election::Fail& failed) { give(std::unexpected(failed.error)); }

  void give_lease_back(bool with_record, Then resigned) {
    await_lease_given_back(std::move(resigned));
    election_.resign(with_record);
    step();
  }

  // It may be elected yet.
  void end_candidacy(Then withdrawn) {
    if (!election_.is_campaigning()) return boost::asio::post(loop_, std::move(withdrawn));
    await_lease_given_back(std::move(withdrawn));
  }

  void await_lease_given_back(Then resigned) {
    resigned_ = std::move(resigned);
    // The entry lapses by itself, so do not wait for a register that does not answer.
    doubt_->arm(clock_.now() + leader_lease_->ttl(), [this] { obey(Election::Resigned{}); });
  }

  void record() {
    // Not sent from here: this is called from within the coordinator, of which the record tells.
    election_.record();
    due_->arm(clock_.now(), [this] { step(); });
  }

  // What the coordinator asks for

  bool may_decide() override { return election_.is_entitled(clock_.now()); }
  bool records_worlds() const override { return true; }
  void record_world(const std::string& /*run_id*/, const WorldRecord& world,
                    Then recorded) override {
    records_.record(world, std::move(recorded));
    record();
  }
  void cut_off() override {
    log::warning("rendezvous",
                 "this node may be cut off: more nodes have been lost to silence than are left");
    let_others_lead();
  }
  // If this leader dies, the record alone tells its successor who is saving, and for how long.
  void stopping_changed() override {
    if (records_.has_any()) record();
  }
  void survivors_changed() override {
    records_.watch_survivors(*host_, [this] { record(); });
  }
  void newer_epoch(std::int64_t epoch) override {
    election_.hear_of(epoch);
    due_->arm(clock_.now(), [this] { step(); });
  }

  // Being the coordinator

  // The register is in reach, but perhaps not for the nodes that could go on without us: no other
  // leader is elected while we renew. Our agents stay, so that others come first.
  void let_others_lead() {
    const TimePoint now = clock_.now();
    if (retiring_ || !election_.is_entitled(now)) return;
    const Duration pause = yield_pause(settings_, leader_lease_->ttl());
    log::info("rendezvous",
              "any other node can be elected to coordinate the job, and in {} this one again",
              format_duration(pause));
    election_.yield(pause, now);
    host_->hold(true);
    due_->arm(now, [this] { step(); });
  }

  // Others may lead if no agent joins a leader that cannot form a world alone: its address may be
  // out of their reach. As a rule they have not been started yet, so this warns of nothing, and it
  // happens less and less often, and not in the last three quarters of join_timeout.
  void await_arrivals() {
    const Rules& rules = settings_.rules;
    if (rules.min_nodes <= 1 || unjoined_after_ > rules.join_timeout / 4) return;
    arrivals_->arm(clock_.now() + unjoined_after_, [this] {
      if (host_->agents() < 2 && host_->is_needed()) {
        unjoined_after_ *= 2;
        let_others_lead();
      }
      await_arrivals();
    });
  }

  // When the world must be told to stop, so that its members have stopped before a successor thinks
  // so: also those that only notice our silence.
  TimePoint isolated_at() const {
    return election_.lease_end() +
           std::max<Duration>(settings_.isolation() * 19 / 20 - settings_.time_to_stop(),
                              Duration::zero());
  }
  // By the address that others use, so that this node presents itself under it.
  Place own_place() const {
    const auto address = net::parse_address(own_text_);
    const bool ours = !address.is_unspecified() && net::is_own_address(address);
    return {{ours ? address.to_string() : "127.0.0.1", host_->port()}, election_.epoch(), true};
  }

  void stop_world() {
    if (!leads() || election_.is_entitled(clock_.now())) return;
    host_->suspend(
        fmt::format("the coordinator could not renew its election for {} (isolation_timeout)",
                    format_duration(clock_.now() - election_.lease_end())));
  }

  // The last word has been said. It is left behind for those who were out of reach.
  void end_job(Then retired) {
    const auto verdict = host_->verdict();
    forget_ = is_forgettable() && !verdict;
    if (verdict) records_.conclude(*verdict);
    give_lease_back(verdict.has_value(), std::move(retired));
  }

  // The record: no later agent needs it.
  bool is_forgettable() const { return !records_.tells_of_end() && !host_->is_fenced(); }

  void disarm() {
    due_->disarm();
    isolation_->disarm();
    arrivals_->disarm();
    records_.stop();
    end_suspension();
  }

  void end_suspension() {
    suspended_ = false;
    doubt_->disarm();
  }

  // Set at construction
  const std::unique_ptr<LeaderLease> leader_lease_;
  const std::unique_ptr<Alarm> due_, doubt_, isolation_;
  const std::unique_ptr<Alarm> look_, arrivals_;
  Then moved_;
  std::minstd_rand random_{std::random_device{}()};

  int nodes_ = 1;  // of the last world, or of the first one

  // While a leader does not answer
  std::optional<TimePoint> retry_at_;
  Duration retry_after_ = kFirstRetry;

  // As candidate and leader
  Election election_;
  WorldRegister records_;
  std::unique_ptr<Coordinator> host_;
  // The others are let lead; it doubles each time.
  Duration unjoined_after_ = yield_pause(settings_, leader_lease_->ttl());
  std::string own_text_;
  ip::address seen_;  // of the last coordinator that was not us
  std::string value_;
  bool suspended_ = false, retiring_ = false, forget_ = false;
  Then resigned_;
};

class FixedLocator final : public Locator {
 public:
  FixedLocator(boost::asio::io_context& loop, Clock& clock,
               std::shared_ptr<const net::Sealer> sealer, SessionSettings settings,
               net::Endpoint endpoint)
      : Locator(loop, clock, std::move(sealer), std::move(settings)),
        endpoint_(std::move(endpoint)),
        resolver_(loop, clock) {}

  // From now on this job has its host. Before, one that had our port may have ended, and left the
  // place to us.
  void accept(const Place&) override { decided_ = true; }

  void cancel() override {
    resolver_.cancel();
    Locator::cancel();
  }

  bool elects() const override { return false; }
  bool serves_others() const override { return host_ && host_->serves_others(); }
  void share_store(const store::Stores& stores) override {
    stores_ = stores;
    if (host_) host_->share_store(stores);
  }

  void retire(const std::string& why, Duration limit, Then retired) override {
    if (!host_) return boost::asio::post(loop_, std::move(retired));
    host_->retire(why, false, limit, std::move(retired));
  }

 private:
  void look() override {
    if (host_ || settings_.config.is_host == false || decided_) return give(place());
    // The own name needs no look-up, which may lead to loopback or nowhere (Debian's 127.0.1.1);
    // nor does "0.0.0.0", which says "here".
    const std::string& host = endpoint_.host;
    if (settings_.config.is_host == true || host == host_name() || net::is_wildcard(host))
      return host_here();
    resolver_.resolve(endpoint_.host, std::chrono::seconds(30),
                      [this](const Result<net::Addresses>& found) { decide(found); });
  }

  Place place() const {
    net::Endpoint endpoint = endpoint_;
    if (host_) endpoint = {own_, host_->port()};
    return {std::move(endpoint), 0, host_ != nullptr};
  }

  void decide(const Result<net::Addresses>& found) {
    // A name that is not known yet may be tomorrow's: the session asks again.
    if (!found) return give(std::unexpected(found.error()));
    // Another machine's for now: the name's address may be of an earlier host, and be ours
    // tomorrow.
    if (!std::ranges::all_of(*found, net::is_own_address)) return give(place());
    const auto outward =
        std::ranges::find_if(*found, [](const auto& address) { return !address.is_loopback(); });
    if (outward != found->end()) own_ = outward->to_string();
    host_here();
  }

  void host_here() {
    const auto address = net::parse_address(endpoint_.host);
    const bool number = !address.is_unspecified() && net::is_own_address(address);
    if (number) own_ = address.to_string();
    // The others may know this node by another name or address than it knows itself by. A node that
    // is alone stays where it was told; a name of our own may lead to loopback here and to another
    // address elsewhere.
    std::string at = "::";
    const bool alone = settings_.rules.max_nodes == 1;
    if (alone && (number || endpoint_.host == "localhost")) at = own_;
    // bind(2) decides among the agents of one machine: the kernel gives the port to one of them.
    auto opened = open(at);
    // Another program may have the port at another address alone; but no other machine comes over
    // loopback.
    const bool unreachable = !alone && settings_.config.is_host == true && address.is_loopback();
    if (!opened && number && at != own_ && !unreachable) opened = open(own_);
    if (opened) {
      host_ = std::move(*opened);
      host_->share_store(stores_);
      return give(place());
    }
    if (settings_.config.is_host == true) {
      return give(fail(
          Code::Rendezvous,
          fmt::format("this node was told to host the rendezvous at {}, but {}",
                      net::format_endpoint(endpoint_.host, endpoint_.port), opened.error().text)));
    }
    // Another agent on this machine was first.
    give(place());
  }

  Result<std::unique_ptr<Coordinator>> open(const std::string& address) {
    return Coordinator::open(loop_, clock_, sealer_, {.address = address, .port = endpoint_.port},
                             coordinator());
  }

  const net::Endpoint endpoint_;
  net::Resolver resolver_;
  bool decided_ = false;           // that another process hosts
  std::string own_ = "127.0.0.1";  // how this node calls on its own host
  std::unique_ptr<Coordinator> host_;
  store::Stores stores_;
};

}  // namespace

std::unique_ptr<Locator> make_elected_locator(boost::asio::io_context& loop, Clock& clock,
                                              std::shared_ptr<const net::Sealer> sealer,
                                              std::unique_ptr<LeaderLease> lease,
                                              SessionSettings settings) {
  return std::make_unique<ElectedLocator>(loop, clock, std::move(sealer), std::move(lease),
                                          std::move(settings));
}

std::unique_ptr<Locator> make_fixed_locator(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            SessionSettings settings, net::Endpoint endpoint) {
  return std::make_unique<FixedLocator>(loop, clock, std::move(sealer), std::move(settings),
                                        std::move(endpoint));
}

}  // namespace elastrun::rendezvous
