// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/coordinator/coordinator.hpp"

#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/pause_tolerant_alarm.hpp"
#include "core/rate_limited_log.hpp"
#include "core/text.hpp"
#include "net/endpoint.hpp"
#include "net/link.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/coordinator/job_book.hpp"
#include "rendezvous/coordinator/leave_taking.hpp"
#include "rendezvous/membership/wording.hpp"
#include "rendezvous/wire/admission.hpp"
#include "rendezvous/wire/messages.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

void LocalAgents::note(Peer peer, const AgentProcesses& processes) {
  if (are_ours(processes)) here_[peer] = processes;
}

bool LocalAgents::is_here(Peer peer, const boost::asio::ip::address& from) const {
  // The hello is only a claim: the connection has to come from this machine as well.
  return here_.contains(peer) && (from.is_loopback() || net::is_own_address(from));
}

void LocalAgents::lose(Peer peer, bool without_word) {
  auto known = here_.extract(peer);
  if (!known || !without_word) return;
  lost_[peer] = {std::move(known.mapped()), clock_.now() + kTimeToReturn};
  // Not inside this call. The kernel closes the connection just before the process has ended.
  look_->arm(clock_.now(), [this] { look(); });
}

void LocalAgents::look() {
  const TimePoint now = clock_.now();
  std::vector<Peer> gone;
  for (const auto& [peer, lost] : lost_) {
    if (are_gone(lost.processes)) gone.push_back(peer);
  }
  for (const Peer peer : gone) lost_.erase(peer);
  std::erase_if(lost_, [now](const auto& one) { return now >= one.second.until; });
  if (!lost_.empty()) look_->arm(now + kLook, [this] { look(); });
  // Last: what this calls may come back here, and change the maps.
  for (const Peer peer : gone) gone_(peer);
}

namespace {

using boost::asio::ip::tcp;
using net::Link;

class LinkCoordinator final : public Coordinator {
 public:
  LinkCoordinator(boost::asio::io_context& loop, Clock& clock,
                  std::shared_ptr<const net::Sealer> sealer, Settings settings)
      : loop_(loop),
        clock_(clock),
        sealer_(std::move(sealer)),
        settings_(std::move(settings)),
        heartbeat_(clock, settings_.heartbeat),
        leave_(loop, clock),
        local_agents_(clock, [this](Peer peer) { forget_lost(peer); }),
        book_(settings_, clock, [this] { check_entitlement(); }) {
    settings_.run_id = fit_text(settings_.run_id);  // as agents will say it
  }

  ~LinkCoordinator() override {
    lifetime_.end();
    for (auto& [peer, connection] : connections_) connection.link->close();
  }

  void serve(tcp::socket socket, std::string first_bytes) override {
    const Peer peer = ++last_peer_;
    auto link = Link::make(std::move(socket), sealer_, Link::Side::Listener,
                           secret_refusal_of(settings_.run_id));
    Link::Handlers handlers;
    handlers.on_frame = [this, peer](const std::string& payload) { hear(peer, payload); };
    handlers.on_end = [this, peer](const Error& error) { lose(peer, error); };
    link->start(std::move(handlers), std::move(first_bytes));
    // Two intervals more than the count of missed heartbeats, which is to find the loss and say
    // why.
    link->bear_silence(settings_.heartbeat * (settings_.heartbeats_missed + 2));
    connections_[peer].link = std::move(link);
    // Only while there are connections: a coordinator without any never wakes up.
    if (connections_.size() == 1) watch_heartbeats();
  }

  // Agents stay connected: perhaps no successor was elected, and a running world needs no decision.
  void hold(bool held) override {
    held_ = held;
    for (auto& [run_id, job] : book_.jobs) {
      job->state.hold(held, clock_.now());
      job->deliver();
    }
  }

  void suspend(const std::string& why) override {
    for (auto& [run_id, job] : book_.jobs) {
      job->state.suspend(why, clock_.now());
      job->deliver();
    }
  }

  void inherit(const WorldRecord& last, TimePoint until, const Leavers& leavers) override {
    // That world outlives its coordinator. One of its members may stay away: as a rule it is that
    // coordinator's own node, which a store has none of.
    MemberFence fence;
    fence.expect(last.id, last.nodes, settings_.stand_alone ? 0 : 1,
                 {last.members.begin(), last.members.end()});
    book_.inherit({last.id, 0, last.nodes}, until, std::move(fence), leavers);
  }
  void inherit_remnant(const PreviousWorld& previous, const Remnant& remnant, int may_miss,
                       const Leavers& leavers) override {
    MemberFence fence;
    fence.expect(previous.id, remnant, may_miss);
    book_.inherit(previous, clock_.now(), std::move(fence), leavers);
  }
  void disinherit(Duration left) override { book_.disinherit(left); }

  void conclude(const WorldId& last, const Done& verdict) override {
    book_.conclude(last, verdict);
  }
  std::optional<Done> verdict() const override { return book_.verdict(); }

  void set_epoch(std::int64_t epoch) override {
    settings_.epoch = epoch;
    const std::string text = encode(FromCoordinator(NewEpoch{epoch}));
    for (auto& [run_id, job] : book_.jobs) {
      job->state.set_epoch(epoch);
      for (auto& [peer, link] : job->links) link->send(text);
    }
    // A copy: a hello that is answered may be dismissed, which takes it out of the map.
    for (const auto& [peer, hello] : std::unordered_map(hellos_)) {
      const auto early = connections_.find(peer);
      if (early != connections_.end() && !early->second.greeted)
        welcome(peer, early->second, hello);
    }
  }

  void on_newer_epoch(std::function<void(std::int64_t)> ask) override {
    on_newer_ = std::move(ask);
  }
  void on_deserted(std::function<void()> react) override { on_deserted_ = std::move(react); }

  void await_leavers(std::function<void()> then) override {
    leave_.await(book_.jobs, std::move(then));
  }
  Leavers leavers() const override { return book_.leavers(); }
  Remnant remnant() const override { return book_.remnant(); }
  bool is_fenced() const override { return book_.is_fenced(); }

  void resign(const std::string& why, bool another_follows) override {
    const std::string text = encode(FromCoordinator(Push(Lost{why, true})));
    for (auto& [peer, connection] : connections_) {
      // Lost would end an agent that a successor will take in; the end of its connection makes it
      // look for that one.
      // An ended job has told its agents the verdict.
      const bool told = connection.job != nullptr && connection.job->state.phase() == Phase::Ended;
      if (connection.job != nullptr && !told && !another_follows) connection.link->send(text);
      connection.link->close();
    }
    connections_.clear();
    book_.jobs.clear();
    heartbeat_.disarm();
    agents_ = 0;
    // No leaver is left to wait for, so this ends the wait of await_leavers().
    leave_.look(book_.jobs);
  }

  std::size_t agents() const override { return agents_; }
  bool is_needed() const override { return book_.is_needed(); }

  std::string status() const override { return book_.status(); }

 private:
  // A connection of a coordinator, from its first byte on.
  struct Connection {
    std::shared_ptr<net::Link> link;
    Job* job = nullptr;  // once it has said hello as an agent
    bool greeted = false;
    std::string host;    // its name, by its hello
    int missed = 0;      // heartbeats in a row
    bool ended = false;  // it has said that its group has ended
  };

  // Before each decision: a process that was paused reads what has arrived, and sees the ends of
  // connections, before the timer rings that says its lease is over.
  void check_entitlement() {
    for (auto& [run_id, job] : book_.jobs) job->note_pause();
    if (!held_ && settings_.entitled && !settings_.entitled()) hold(true);
  }

  void hear(Peer peer, const std::string& payload) {
    check_entitlement();
    Connection& connection = connections_.at(peer);
    auto message = decode_from_agent(payload);
    if (!message) return dismiss(peer, message.error().text);
    if (auto* hello = std::get_if<Hello>(&*message)) return welcome(peer, connection, *hello);
    if (!connection.greeted) return dismiss(peer, "the first message must be \"hello\"");
    note_life(peer, connection, *message);
    if (std::holds_alternative<Heartbeat>(*message)) {
      return connection.link->send(encode(FromCoordinator(Heartbeat{})));
    }
    const auto* leaving = std::get_if<Leaving>(&*message);
    if (leaving != nullptr && leaving->grace > Duration::zero()) attend(peer, connection);
    if (leaving != nullptr) connection.ended |= leaving->ended;
    if (connection.job == nullptr && !std::holds_alternative<Join>(*message)) return;
    if (auto* join = std::get_if<Join>(&*message)) {
      if (!admit(peer, connection, *join)) return;
    } else {
      connection.job->report(peer, std::move(*message));
    }
    // The message may have cost the peer its connection.
    if (connections_.contains(peer)) connection.job->deliver();
  }

  // The agent that replaces it is not its twin once it has gone.
  void note_life(Peer peer, const Connection& connection, const FromAgent& message) {
    if (connection.job == nullptr || std::holds_alternative<Leaving>(message)) return;
    if (connection.job->state.hear(peer, clock_.now())) connection.job->deliver();
  }

  void welcome(Peer peer, Connection& connection, const Hello& hello) {
    if (connection.greeted) return dismiss(peer, "a second \"hello\"");
    const auto refusal = refusal_of(hello, settings_.run_id, settings_.start);
    if (!refusal.empty()) return dismiss(peer, refusal);
    // Not elected yet: it is answered with the epoch, once there is one.
    if (settings_.epoch == 0) {
      hellos_[peer] = hello;
      return;
    }
    if (hello.epoch > settings_.epoch) {
      // It has seen our successor. The election must find out before we decide anything more.
      if (on_newer_) on_newer_(hello.epoch);
      return dismiss(peer, fmt::format("this coordinator is of epoch {}, but epoch {} exists",
                                       settings_.epoch, hello.epoch));
    }
    if (book_.is_over_for(hello)) {  // it goes on looking until this coordinator has gone
      connection.link->send(encode(FromCoordinator(Push(Progress{ending_text(hello.run_id)}))));
      return remove(peer, ending_text(hello.run_id), Loss::Broken);
    }
    connection.greeted = true;
    connection.host = hello.host;
    hellos_[peer] = hello;
    if (hello.processes) local_agents_.note(peer, *hello.processes);
    if (hello.wants_status) {
      connection.link->send(encode(FromCoordinator(StatusText{status()})));
      return;
    }
    if (hello.wants_stacks) return ask_stacks(peer, connection, hello.run_id);
    // With the last world, also for an agent outside it: a restarted store knows only what its
    // agents tell.
    Welcome answer{hello.run_id, settings_.epoch, settings_.stand_alone, settings_.heartbeat,
                   settings_.heartbeats_missed};
    answer.fences = answer.stacks = answer.saves = true;
    if (const auto job = book_.jobs.find(hello.run_id); job != book_.jobs.end()) {
      answer.world = job->second->state.last_world();
    }
    connection.link->send(encode(FromCoordinator(std::move(answer))));
    if (auto& at_work = hellos_[peer].at_work) meet_again(peer, connection, *at_work);
  }

  void ask_stacks(Peer peer, Connection& connection, const std::string& run_id) {
    const auto job =
        run_id.empty() && book_.jobs.size() == 1 ? book_.jobs.begin() : book_.jobs.find(run_id);
    if (job == book_.jobs.end()) return dismiss(peer, "it serves no such job");
    job->second->ask_stacks(peer, connection.link);
  }

  // It lost its connection, here or to another coordinator, while its group was at work.
  void meet_again(Peer peer, Connection& connection, AtWork& at_work) {
    if (!take_in(peer, connection, at_work.member)) return;
    const Join& member = at_work.member;
    connection.job->state.arrive_stopping(peer, member.node, member.previous, at_work.left,
                                          clock_.now());
    connection.job->deliver();
  }

  bool admit(Peer peer, Connection& connection, Join& join) {
    if (!take_in(peer, connection, join)) return false;
    hellos_.erase(peer);
    State& state = connection.job->state;
    // First, since joining may complete the next round.
    state.hear_of(join.knows, join.node.grace, clock_.now());
    state.join(peer, std::move(join.node), join.previous, clock_.now());
    return true;
  }

  bool take_in(Peer peer, Connection& connection, Join& join) {
    if (join.node.address.empty())
      join.node.address = connection.link->remote_address().to_string();
    if (connection.job == nullptr) {
      const Hello& hello = hellos_[peer];
      const auto known = book_.jobs.find(hello.run_id);
      if (const auto* rules = known != book_.jobs.end() ? &known->second->state.rules()
                              // A store by itself takes the rules of the first agent that comes.
                              : settings_.stand_alone ? nullptr
                                                      : &settings_.rules) {
        if (const auto refusal = refusal_of(join.rules, *rules); !refusal.empty()) {
          // Final: the rules of a job do not change, and another coordinator would refuse as well.
          dismiss(peer, Refusal{refusal, true, is_misuse(join.rules, *rules)});
          return false;
        }
      }
      log::info("rendezvous", "{}",
                arrival_text(hello, join.node, connection.link->remote_address().to_string()));
      enter(peer, connection, settings_.stand_alone ? join.rules : settings_.rules);
      warn_of_other_rules(join, connection.job->state.rules());
    }
    join.node.host = connection.host;
    join.node.local = local_agents_.is_here(peer, connection.link->remote_address());
    // Behind address translation a node names only addresses that the others never see.
    add_source_address(join.node, connection.link->remote_address());
    connection.job->note_reachable(*connection.link);
    return true;
  }

  // One that has not joined since it was told to stop goes: its group is at work still.
  void attend(Peer peer, Connection& connection) {
    if (connection.job != nullptr) return;
    // A store that knows no such job has nothing to wait for.
    if (settings_.stand_alone && !book_.jobs.contains(hellos_[peer].run_id)) return;
    enter(peer, connection, settings_.rules);
  }

  void enter(Peer peer, Connection& connection, const Rules& rules) {
    Job& job = book_.open(hellos_[peer].run_id, rules, held_);
    connection.job = &job;
    job.links[peer] = connection.link;
    if (!hellos_[peer].stacks) job.without_stacks.insert(peer);
    if (!hellos_[peer].saves) job.without_saves.insert(peer);
    lost_contact_.came(), ++agents_;
  }

  void dismiss(Peer peer, const std::string& text) { dismiss(peer, Refusal{text}); }
  void dismiss(Peer peer, const Refusal& refusal) {
    const auto found = connections_.find(peer);
    refusals_.add("refused {}: {}", found->second.link->remote_address().to_string(), refusal.text);
    // Wrapped like any message, so that the other side can tell it from a broken connection.
    found->second.link->send(encode(FromCoordinator(refusal)));
    remove(peer, refusal.text, Loss::Broken);
  }

  void lose(Peer peer, const Error& error) {
    const auto found = connections_.find(peer);
    // It was removed before; its link still tells that it has ended.
    if (found == connections_.end()) return;
    const bool broken = error.code == Code::Closed || error.code == Code::Io;
    if (!found->second.greeted && !broken) {
      const std::string job =
          settings_.run_id.empty() ? "" : fmt::format(" to the job \"{}\"", settings_.run_id);
      refusals_.add("refused a connection{}: {}", job, error.text);
    }
    // A proxy closes in order, too: only its word says that the group of the agent has ended.
    const Loss in_order = found->second.ended ? Loss::Ended : Loss::Closed;
    remove(peer, error.text, error.code == Code::Closed ? in_order : Loss::Broken);
  }

  void remove(Peer peer, const std::string& why, Loss loss) {
    const auto found = connections_.find(peer);
    found->second.link->close();
    Job* job = found->second.job;
    // Not: one that leaves, or a connection that its member has given up for a newer one.
    const bool member = job != nullptr && job->state.roster().all().contains(peer);
    connections_.erase(found);
    hellos_.erase(peer);
    if (connections_.empty()) heartbeat_.disarm();
    local_agents_.lose(peer, job != nullptr && (loss == Loss::Closed || loss == Loss::Broken));
    if (job == nullptr) return;
    --agents_;
    const bool silent = member && loss == Loss::Silent;
    const bool cut_off = silent && lost_contact_.silent(job->state.phase(), agents_);
    if (cut_off && settings_.cut_off) {
      log::warning("rendezvous",
                   "this node may be cut off: more nodes have been lost to silence than are left");
      settings_.cut_off();
    }
    check_entitlement();  // `cut_off` may have given the lease back
    job->lost(peer, why, loss);
    job->deliver();
    // Not while leavers are awaited: `leave_` asks the job how long they may take.
    if (job->links.empty() && !leave_.is_awaited()) book_.forget(*job);
    leave_.look(book_.jobs, true);
    if (agents_ != 0 || !on_deserted_) return;
    // Not inside this call: the reaction may destroy us. Until then another agent may have come.
    boost::asio::post(loop_, [this, alive = lifetime_.token()] {
      if (alive && agents_ == 0 && on_deserted_) on_deserted_();
    });
  }

  // It was lost without a word, and has ended.
  void forget_lost(Peer peer) {
    check_entitlement();
    for (auto& [run_id, job] : book_.jobs) {
      job->state.depart(peer, "its processes have ended", clock_.now(), Loss::Ended);
      job->deliver();
    }
    leave_.look(book_.jobs);
  }

  void watch_heartbeats() {
    heartbeat_.arm(clock_.now() + settings_.heartbeat, [this] {
      std::vector<std::pair<Peer, std::string>> silent;
      for (auto& [peer, connection] : connections_) {
        // Before the hello no byte is a sign of life, or a stranger could keep its connection for
        // ever.
        const bool lives = connection.link->heard() && connection.greeted;
        connection.missed = lives ? 0 : connection.missed + 1;
        if (connection.missed >= settings_.heartbeats_missed) {
          silent.emplace_back(
              peer, fmt::format("silent for {}", format_duration(settings_.heartbeat *
                                                                 settings_.heartbeats_missed)));
        }
      }
      for (const auto& [peer, why] : silent) {
        // The loss of one may have closed others: a verdict, a lease given back.
        if (connections_.contains(peer)) remove(peer, why, Loss::Silent);
      }
      if (!connections_.empty()) watch_heartbeats();
    });
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const std::shared_ptr<const net::Sealer> sealer_;
  Settings settings_;
  // After a pause of this process it is not the others who were silent. What they have said
  // meanwhile has not been read yet; those who were paused with us need as long to wake.
  PauseTolerantAlarm heartbeat_;
  LeaveTaking leave_;
  LocalAgents local_agents_;
  std::function<void(std::int64_t)> on_newer_;
  std::function<void()> on_deserted_;
  Peer last_peer_ = 0;
  std::unordered_map<Peer, Connection> connections_;
  std::unordered_map<Peer, Hello> hellos_;  // of those that have not joined yet
  RateLimitedLog refusals_{"rendezvous"};
  JobBook book_;
  LostContact lost_contact_;
  std::size_t agents_ = 0;
  bool held_ = false;
  Lifetime lifetime_;  // posted reactions outlive it
};

}  // namespace

std::unique_ptr<Coordinator> Coordinator::make(boost::asio::io_context& loop, Clock& clock,
                                               std::shared_ptr<const net::Sealer> sealer,
                                               Settings settings) {
  return std::make_unique<LinkCoordinator>(loop, clock, std::move(sealer), std::move(settings));
}

}  // namespace elastrun::rendezvous
