// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/coordinator/coordinator.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/membership/wording.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/server.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace elastrun::rendezvous {
namespace {

// An alarm that rings so late tells of a machine that stood still (SIGSTOP, a suspended one).
constexpr Duration kPause = std::chrono::seconds(1);

// In the order of the enumerators.
constexpr std::array<std::string_view, 4> kPhaseNames = {"joining", "running", "failing", "ended"};

std::string_view doing(const Member& member, Phase phase) {
  switch (member.state) {
    case MemberState::Waiting:
      return phase == Phase::Running ? "spare" : "waiting for the round";
    case MemberState::Running:
      return member.started ? "running" : "starting its workers";
    case MemberState::Finished:
      return "finished, waiting for the others";
    case MemberState::Failed:
      return "failed";
    case MemberState::Stopping:
      return "stopping its workers";
    case MemberState::Renewing:
      return member.back ? "waiting for the others of its role, which restarts"
                         : "stopping its workers, as its role restarts";
  }
  return "unknown";
}

json::object describe(const Member& member, Phase phase, TimePoint now) {
  json::object node{{"id", member.node.id},
                    {"address", member.node.address},
                    {"role", member.node.role},
                    {"workers", member.node.local_world_size},
                    {"state", member_state_name(member.state)},
                    {"doing", doing(member, phase)},
                    {"seconds", to_seconds(now - member.since)}};
  if (member.node.node_rank >= 0) node["node_rank"] = member.node.node_rank;
  if (!member.node.topology.empty()) node["topology"] = member.node.topology;
  const bool in_round = takes_part(member.state) || member.state == MemberState::Failed;
  if (in_round) node["group_rank"] = member.node.last_rank;
  return node;
}

json::array member_nodes(const State& state, TimePoint now) {
  // Not by the roster's keys, which are numbers of connections and mean nothing to a reader.
  std::vector<const Member*> order;
  for (const auto& [peer, member] : state.roster().all()) order.push_back(&member);
  std::ranges::sort(order, [](const Member* left, const Member* right) {
    return comes_before(left->node, right->node);
  });
  json::array nodes;
  const auto& world = state.world_of_roles();
  for (const Member* member : order) {
    auto node = describe(*member, state.phase(), now);
    // Of one that restarts alone it is not the job's.
    if (world) node["attempt"] = world->meeting_of(member->node.role).attempt;
    nodes.emplace_back(std::move(node));
  }
  return nodes;
}

// With fixed ranks the missing have a name: their rank.
json::array missing_ranks(const State& state) {
  std::vector<bool> there(static_cast<std::size_t>(state.rules().max_nodes));
  for (const auto& [peer, member] : state.roster().all()) {
    // State::admit() has refused what is outside of the range.
    there.at(static_cast<std::size_t>(member.node.node_rank)) = true;
  }
  json::array missing;
  for (std::size_t rank = 0; rank < there.size(); ++rank) {
    if (!there[rank]) missing.emplace_back(rank);
  }
  return missing;
}

// The latest first, and no more than are missing: the place of the others has been taken.
json::array gone_nodes(const State& state, TimePoint now) {
  auto missing = state.rules().max_nodes - state.roster().size();
  json::array nodes;
  for (auto gone = state.gone().rbegin(); gone != state.gone().rend() && missing > 0; ++gone) {
    nodes.emplace_back(json::object{{"id", gone->node.id},
                                    {"address", gone->node.address},
                                    {"why", gone->why},
                                    {"seconds", to_seconds(now - gone->since)}});
    --missing;
  }
  return nodes;
}

json::array held_workers(const std::map<int, std::string>& held) {
  json::array list;
  for (const auto& [rank, by] : held) list.emplace_back(json::object{{"rank", rank}, {"by", by}});
  return list;
}

}  // namespace

json::object describe(const State& state, TimePoint now) {
  const Rules& rules = state.rules();
  const int here = state.roster().size();
  json::object job{{"run_id", state.run_id()},
                   {"epoch", state.epoch()},
                   {"phase", kPhaseNames.at(static_cast<std::size_t>(state.phase()))},
                   {"round", state.round_number()},
                   {"attempt", state.attempt()},
                   {"max_restarts", rules.max_restarts},
                   {"restarts_left", state.restarts_left()},
                   {"min_nodes", rules.min_nodes},
                   {"max_nodes", rules.max_nodes},
                   {"missing", std::max(rules.min_nodes - here, 0)},
                   {"nodes", member_nodes(state, now)}};
  if (auto gone = gone_nodes(state, now); !gone.empty()) job["gone"] = std::move(gone);
  if (const auto memory = state.restart_memory(now); !memory.empty())
    job["restarts"] = to_json(memory);
  if (rules.rank_order_topology) job["rank_order"] = "topology";
  if (auto held = held_workers(state.held()); !held.empty()) job["held"] = std::move(held);
  if (rules.fixed_ranks) job["missing_node_ranks"] = missing_ranks(state);
  if (state.phase() == Phase::Joining && here > 0) {
    job["seconds"] = to_seconds(now - state.join_phase().since());
    job["text"] = progress_text(rules, state.quorum(), state.join_phase(), state.world_fence(),
                                state.is_held(), {}, now);
  }
  if (state.phase() == Phase::Ended) {
    job["failed"] = state.verdict().failed;
    job["text"] = state.verdict().cause.text;
  }
  return job;
}

using boost::asio::ip::tcp;

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

using net::Link;

// For how long a member that was lost may go on until it stops its group (see HeartbeatLease), also
// if it has just been paused, with a quarter for clocks that differ and machines that are busy.
Duration reaction_of(const CoordinatorSettings& settings) {
  return settings.heartbeat * 2 + settings.heartbeat * settings.heartbeats_missed / 4;
}
// As long as the links of both sides bear it, and the same quarter.
Duration silence_of(const CoordinatorSettings& settings) {
  return settings.heartbeat * (settings.heartbeats_missed + 2) * 5 / 4;
}

}  // namespace

Coordinator::Coordinator(boost::asio::io_context& loop, Clock& clock,
                         std::shared_ptr<const net::Sealer> sealer, CoordinatorSettings settings)
    : loop_(loop),
      clock_(clock),
      sealer_(std::move(sealer)),
      settings_(std::move(settings)),
      // Agents of an earlier life of this store look for it twice in that time.
      ready_at_(settings_.stand_alone ? clock.now() + kTimeToFollow : TimePoint()),
      heartbeat_(clock, settings_.heartbeat),
      local_agents_(clock, [this](Peer peer) { forget_lost(peer); }),
      stopping_due_(clock.make_alarm()),
      fences_due_(clock.make_alarm()),
      retired_by_(clock.make_alarm()) {
  settings_.run_id = fit_text(settings_.run_id, kLongestSent);  // as agents will say it
  for (const auto& [run_id, world] : settings_.known_worlds) {
    unattended_[run_id] = {{world.id, 0, world.nodes}, clock.now() + world.at_work};
    unattended_[run_id].fence.expect(world.id, world.nodes, 0);
  }
  forget_fences();
}

Coordinator::~Coordinator() {
  lifetime_.end();
  for (auto& [peer, connection] : connections_) connection.link->close();
}

Result<std::unique_ptr<Coordinator>> Coordinator::open(boost::asio::io_context& loop, Clock& clock,
                                                       std::shared_ptr<const net::Sealer> sealer,
                                                       net::Listener::Settings listener,
                                                       CoordinatorSettings settings,
                                                       std::optional<spec::PortRange> ports) {
  std::unique_ptr<Coordinator> made(
      new Coordinator(loop, clock, std::move(sealer), std::move(settings)));
  Result<std::unique_ptr<net::Listener>> opened = fail(Code::Io, "no port is given");
  const auto range = ports.value_or(spec::PortRange{listener.port, listener.port});
  for (int port = range.first; !opened && port <= range.last; ++port) {
    net::Listener::Takers takers;
    // A raw pointer, since the listener is a part of the coordinator.
    takers.agent = [own = made.get()](tcp::socket socket, std::string first_bytes) {
      own->serve(std::move(socket), std::move(first_bytes));
    };
    listener.port = static_cast<std::uint16_t>(port);
    opened = net::Listener::open(loop, clock, listener, std::move(takers));
  }
  if (!opened) return std::unexpected(opened.error());
  made->listener_ = std::move(*opened);
  return made;
}

void Coordinator::share_store(const store::Stores& stores) {
  if (stores.current == nullptr && stores.next == nullptr) return listener_->take_stores({});
  listener_->take_stores([this, stores](tcp::socket socket, std::string first_bytes) {
    // A world that has been given out may have workers before this node hears of it; until then
    // only those of the last one run.
    const bool is_next = stores.next != nullptr && (!is_needed() || stores.current == nullptr);
    (is_next ? stores.next : stores.current)->adopt(std::move(socket), std::move(first_bytes));
  });
}

void Coordinator::retire(const std::string& why, bool another_follows, Duration limit,
                         Then retired) {
  retired_ = std::move(retired);
  if (!why.empty()) resign(why, another_follows);
  if (agents_ == 0) return finish_retiring();
  retired_by_->arm(clock_.now() + limit, [this] { finish_retiring(); });
}

void Coordinator::finish_retiring() {
  retired_by_->disarm();
  if (retired_) boost::asio::post(loop_, std::exchange(retired_, {}));
}

void Coordinator::serve(boost::asio::ip::tcp::socket socket, std::string first_bytes) {
  const Peer peer = ++last_peer_;
  auto link = std::make_shared<Link>(std::move(socket), sealer_, Link::Side::Listener,
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

void Coordinator::set_epoch(std::int64_t epoch) {
  settings_.epoch = epoch;
  const std::string text = encode(FromCoordinator(NewEpoch{epoch}));
  for (auto& [run_id, job] : jobs_) {
    job->state.set_epoch(epoch);
    for (auto& [peer, link] : job->links) link->send(text);
  }
  std::vector<Peer> early;
  for (const auto& [peer, connection] : connections_)
    if (connection.hello && !connection.greeted) early.push_back(peer);
  for (const Peer peer : early) {  // one whose hello is answered may take others along
    const auto found = connections_.find(peer);
    if (found != connections_.end()) welcome(peer, found->second, Hello(*found->second.hello));
  }
}

void Coordinator::resign(const std::string& why, bool another_follows) {
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
  jobs_.clear();
  heartbeat_.disarm();
  agents_ = 0;
  // No leaver is left to wait for, so this ends the wait of await_stopping_groups().
  look_for_stopping_groups();
}

void Coordinator::hear(Peer peer, const std::string& payload) {
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
  // One that has not joined since it was told to stop goes: its group is at work still. A store
  // that knows no such job has nothing to wait for.
  const bool saves = leaving != nullptr && leaving->grace > Duration::zero();
  if (saves && connection.job == nullptr &&
      (!settings_.stand_alone || jobs_.contains(connection.hello->run_id)))
    enter(peer, connection, settings_.rules);
  if (leaving != nullptr) connection.ended |= leaving->ended;
  if (connection.job == nullptr && !std::holds_alternative<Join>(*message)) return;
  if (auto* join = std::get_if<Join>(&*message)) {
    if (!take_in(peer, connection, *join)) return;
    connection.hello.reset();
    State& state = connection.job->state;
    // First, since joining may complete the next round.
    state.hear_of(join->knows, join->node.grace, clock_.now());
    state.join(peer, std::move(join->node), join->previous, clock_.now());
  } else {
    report(*connection.job, peer, std::move(*message));
  }
  // The message may have cost the peer its connection.
  if (connections_.contains(peer)) deliver(*connection.job);
}

void Coordinator::welcome(Peer peer, Connection& connection, const Hello& hello) {
  if (connection.greeted) return dismiss(peer, "a second \"hello\"");
  const auto refusal = refusal_of(hello, settings_.run_id, settings_.start);
  if (!refusal.empty()) return dismiss(peer, refusal);
  // Not elected yet: it is answered with the epoch, once there is one.
  if (settings_.epoch == 0) {
    connection.hello = hello;
    return;
  }
  if (hello.epoch > settings_.epoch) {
    // It has seen our successor. The election must find out before we decide anything more.
    if (settings_.owner != nullptr) settings_.owner->newer_epoch(hello.epoch);
    return dismiss(peer, fmt::format("this coordinator is of epoch {}, but epoch {} exists",
                                     settings_.epoch, hello.epoch));
  }
  if (is_over_for(hello)) {  // it goes on looking until this coordinator has gone
    const auto why = fmt::format(
        "an earlier start of the job \"{}\" has failed and is just ending here; waiting for its "
        "end",
        hello.run_id);
    connection.link->send(encode(FromCoordinator(Push(Progress{why}))));
    return remove(peer, why, Loss::Broken);
  }
  connection.greeted = true;
  connection.host = hello.host;
  connection.hello = hello;
  if (hello.processes) local_agents_.note(peer, *hello.processes);
  if (hello.who == Hello::Who::Status) {
    connection.link->send(encode(FromCoordinator(StatusText{status()})));
    return;
  }
  if (hello.who == Hello::Who::Stacks) return ask_stacks(peer, connection, hello.run_id);
  // With the last world, also for an agent outside it: a restarted store knows only what its
  // agents tell.
  Welcome answer{hello.run_id, settings_.epoch, settings_.stand_alone, settings_.heartbeat,
                 settings_.heartbeats_missed};
  if (const auto job = jobs_.find(hello.run_id); job != jobs_.end()) {
    answer.world = job->second->state.last_world();
  }
  connection.link->send(encode(FromCoordinator(std::move(answer))));
  // It lost its connection, here or to another coordinator, while its group was at work.
  auto& at_work = connection.hello->at_work;
  if (!at_work || !take_in(peer, connection, at_work->member)) return;
  const Join& member = at_work->member;
  connection.job->state.arrive_stopping(peer, member.node, member.previous, at_work->left,
                                        clock_.now());
  deliver(*connection.job);
}

void Coordinator::ask_stacks(Peer peer, Connection& connection, const std::string& run_id) {
  const auto job = run_id.empty() && jobs_.size() == 1 ? jobs_.begin() : jobs_.find(run_id);
  if (job == jobs_.end()) return dismiss(peer, "it serves no such job");
  job->second->askers[peer] = connection.link;
  job->second->state.report(peer, AskStacks{}, clock_.now());
  deliver(*job->second);
}

bool Coordinator::take_in(Peer peer, Connection& connection, Join& join) {
  if (join.node.address.empty()) join.node.address = connection.link->remote_address().to_string();
  if (connection.job == nullptr) {
    const Hello& hello = *connection.hello;
    const auto known = jobs_.find(hello.run_id);
    if (const auto* rules = known != jobs_.end() ? &known->second->state.rules()
                            // A store by itself takes the rules of the first agent that comes.
                            : settings_.stand_alone ? nullptr
                                                    : &settings_.rules) {
      if (const auto refusal = refusal_of(join.rules, *rules)) {
        dismiss(peer, *refusal);
        return false;
      }
    }
    log::info("rendezvous", "node {} of the job \"{}\" joins from {} (host {}, user {})",
              join.node.id, hello.run_id, connection.link->remote_address().to_string(), hello.host,
              hello.user);
    enter(peer, connection, settings_.stand_alone ? join.rules : settings_.rules);
    warn_of_other_rules(join, connection.job->state.rules());
  }
  join.node.host = connection.host;
  join.node.local = local_agents_.is_here(peer, connection.link->remote_address());
  // Behind address translation a node names only addresses that the others never see.
  add_source_address(join.node, connection.link->remote_address());
  // Agents on this very machine come over loopback, an address that is of no use to the others: in
  // a world with other machines they get the address under which those have found us. A connection
  // within this machine does not show that one.
  const auto own = connection.link->local_address(), its = connection.link->remote_address();
  if (!own.is_loopback() && !its.is_loopback() && its != own)
    connection.job->state.set_reachable(own.to_string());
  return true;
}

void Coordinator::enter(Peer peer, Connection& connection, const Rules& rules) {
  Job& job = job_of(connection.hello->run_id, rules);
  connection.job = &job;
  job.links[peer] = connection.link;
  cut_off_detector_.came(), ++agents_;
}

void Coordinator::dismiss(Peer peer, const Refusal& refusal) {
  const auto found = connections_.find(peer);
  refusals_.add("refused {}: {}", found->second.link->remote_address().to_string(), refusal.text);
  // Wrapped like any message, so that the other side can tell it from a broken connection.
  found->second.link->send(encode(FromCoordinator(refusal)));
  remove(peer, refusal.text, Loss::Broken);
}

void Coordinator::lose(Peer peer, const Error& error) {
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

void Coordinator::remove(Peer peer, const std::string& why, Loss loss) {
  const auto found = connections_.find(peer);
  found->second.link->close();
  Job* job = found->second.job;
  // Not: one that leaves, or a connection that its member has given up for a newer one.
  const bool member = job != nullptr && job->state.roster().all().contains(peer);
  connections_.erase(found);
  if (connections_.empty()) heartbeat_.disarm();
  local_agents_.lose(peer, job != nullptr && (loss == Loss::Closed || loss == Loss::Broken));
  if (job == nullptr) return;
  --agents_;
  const bool silent = member && loss == Loss::Silent;
  const bool cut_off = silent && cut_off_detector_.silent(job->state.phase(), agents_);
  if (cut_off && settings_.owner != nullptr) settings_.owner->cut_off();
  check_entitlement();  // `cut_off` may have given the lease back
  // The link first: what the state decides next is not for this peer any more.
  job->links.erase(peer), job->askers.erase(peer);
  job->state.lost(peer, why, clock_.now(), loss);
  deliver(*job);
  // Not while groups that stop are awaited: the job says how long they may take.
  if (job->links.empty() && !on_all_stopped_) forget(*job);
  look_for_stopping_groups(true);
  if (agents_ != 0 || !retired_) return;
  // Not inside this call: until then another agent may have come.
  boost::asio::post(loop_, [this, alive = lifetime_.token()] {
    if (alive && agents_ == 0) finish_retiring();
  });
}

// It was lost without a word, and has ended.
void Coordinator::forget_lost(Peer peer) {
  check_entitlement();
  change_jobs([&](State& state) {
    state.depart(peer, "its processes have ended", clock_.now(), Loss::Ended);
  });
  look_for_stopping_groups();
}

void Coordinator::watch_heartbeats() {
  heartbeat_.arm(clock_.now() + settings_.heartbeat, [this] {
    std::vector<std::pair<Peer, std::string>> silent;
    for (auto& [peer, connection] : connections_) {
      // Before the hello no byte is a sign of life, or a stranger could keep its connection for
      // ever.
      const bool lives = connection.link->heard() && connection.greeted;
      connection.missed = lives ? 0 : connection.missed + 1;
      if (connection.missed >= settings_.heartbeats_missed) {
        silent.emplace_back(
            peer, fmt::format("silent for {}",
                              format_duration(settings_.heartbeat * settings_.heartbeats_missed)));
      }
    }
    for (const auto& [peer, why] : silent) {
      // The loss of one may have closed others: a verdict, a lease given back.
      if (connections_.contains(peer)) remove(peer, why, Loss::Silent);
    }
    if (!connections_.empty()) watch_heartbeats();
  });
}

Coordinator::Job& Coordinator::job_of(const std::string& run_id, const Rules& rules) {
  auto& job = jobs_[run_id];
  if (job) return *job;
  Rules own = rules;
  own.reaction = reaction_of(settings_);
  own.silence = silence_of(settings_);
  own.hosted = !settings_.stand_alone;
  job = std::make_shared<Job>(State(own, run_id, settings_.master_addr, settings_.master_port),
                              clock_.make_alarm());
  job->state.set_epoch(settings_.epoch);
  if (settings_.owner != nullptr && settings_.owner->records_worlds())
    job->state.require_acknowledgements();
  // A world of which this store has forgotten may still be at work, and its members look for us: a
  // new one waits until they have had the time.
  if (clock_.now() < ready_at_) job->state.inherit({{}, ready_at_});
  if (const auto left = unattended_.extract(run_id)) job->state.inherit(left.mapped());
  if (over_) job->state.conclude(over_->first, over_->second);
  job->state.hold(held_, clock_.now());
  forget_fences();
  return *job;
}

void Coordinator::report(Job& job, Peer peer, FromAgent message) {
  const TimePoint now = clock_.now();
  const auto tell = [&](auto& said) {
    using Said = std::remove_reference_t<decltype(said)>;
    if constexpr (std::is_same_v<Said, Stopping>) {
      job.state.stopping(peer, said.left, now);
    } else if constexpr (std::is_constructible_v<Report, Said>) {
      job.state.report(peer, std::move(said), now);
    }
  };
  std::visit(tell, message);
}

// Tells the agents what the state has to tell, has the world recorded that waits for it, and arms
// the alarm. A list of members is encoded once, since thousands of them get the same one.
void Coordinator::deliver(Job& job) {
  std::shared_ptr<const World> world;
  std::shared_ptr<const Push> shared;
  std::string members, text;
  for (const Delivery& delivery : job.state.take()) {
    const auto member = job.links.find(delivery.to);
    // It may be a client such as elastrunctl, which is not a member, and gets one answer.
    const auto asker = job.askers.find(delivery.to);
    const auto link = member != job.links.end()   ? member->second
                      : asker != job.askers.end() ? asker->second.lock()
                                                  : nullptr;
    if (asker != job.askers.end()) job.askers.erase(asker);
    if (!link) continue;
    if (const auto* assigned = std::get_if<Assigned>(&delivery.notice)) {
      if (assigned->world != world) {
        world = assigned->world;
        members = encode_members(*world);
      }
      link->send(encode_assignment(*world, assigned->group_rank, members));
      continue;
    }
    const auto& push = std::get<std::shared_ptr<const Push>>(delivery.notice);
    if (push != shared) {
      shared = push;
      text = encode(FromCoordinator(*push));
    }
    link->send(text);
  }
  arm(job);
  if (settings_.owner == nullptr) return;
  State& state = job.state;
  // One at a time; a world that has changed meanwhile is recorded by its own request.
  if (state.unacknowledged() && !job.recording) record_world(job);
  const int leaving = state.world_fence().fence.stopping_groups().count;
  if (std::exchange(job.stopping_groups, leaving) != leaving) settings_.owner->stopping_changed();
  const int at_work = state.roster().count(MemberState::Stopping);
  const bool changed = std::exchange(job.stopping, at_work) != at_work;
  if (changed && state.phase() == Phase::Joining) settings_.owner->survivors_changed();
  // A job that has failed stops its groups now: it is over when its last agent has gone.
  const bool over = state.phase() == Phase::Ended && !state.verdict().failed;
  if (over && !std::exchange(job.told_end, true)) settings_.owner->job_over(state.run_id());
}

// Before any member hears of that world: a successor that found no record of it would form another
// one beside it.
void Coordinator::record_world(Job& job) {
  job.recording = true;
  const WorldRecord world = *job.state.unacknowledged();
  const auto recorded = [this, world, job = std::weak_ptr(jobs_.at(job.state.run_id()))] {
    const auto there = job.lock();
    if (!there) return;
    check_entitlement();
    there->recording = false;
    there->state.acknowledge(world, clock_.now());
    deliver(*there);
  };
  settings_.owner->record_world(job.state.run_id(), world, recorded);
}

// Before a fact: if this machine stood still, the wait for nodes goes on for as long. Facts of that
// time are read before any alarm rings.
void Coordinator::note_pause(Job& job) {
  const TimePoint now = clock_.now();
  // `expected` moves on, so that no pause is counted twice.
  if (job.armed && now - job.expected > kPause)
    job.state.stand_still(now - std::exchange(job.expected, now));
}

void Coordinator::arm(Job& job) {
  const auto due = job.state.deadline();
  // Each message leads here, and most change nothing: an alarm is not set again for the same time.
  if (due == job.armed) return;
  job.armed = due;
  if (!due) return job.alarm->disarm();
  // A time that has passed already rings now; that delay is not a pause.
  job.expected = std::max(*due, clock_.now());
  job.alarm->arm(*due, [this, &job] {
    // Before `armed` is reset, without which no pause is seen.
    note_pause(job);
    job.armed.reset();
    check_entitlement();
    job.state.tick(clock_.now());
    deliver(job);
  });
}

// Worlds of which no member has come in time. The list of worlds is told now, not with the next
// job.
void Coordinator::forget_fences() {
  std::optional<TimePoint> next;
  std::erase_if(unattended_, [&](const auto& job) {
    const bool over = !job.second.is_pending(clock_.now());
    if (!over) next = std::min(next.value_or(job.second.end()), job.second.end());
    if (over && settings_.owner != nullptr && !jobs_.contains(job.first))
      settings_.owner->job_over(job.first);
    return over;
  });
  if (!next || settings_.owner == nullptr) return fences_due_->disarm();
  fences_due_->arm(*next, [this] { forget_fences(); });
}

void Coordinator::forget(const Job& job) {
  const State& state = job.state;
  if (state.phase() == Phase::Ended) {
    ended_ = state.verdict();
    // Members that were out of reach come late.
    if (!settings_.run_id.empty()) over_ = {state.past().last(), state.verdict()};
  }
  // A copy: the job goes with its name.
  const std::string run_id = state.run_id();
  const auto left = state.left_behind(clock_.now());
  if (left) unattended_[run_id] = *left;
  jobs_.erase(run_id);
  forget_fences();
  if (!left && settings_.owner != nullptr) settings_.owner->job_over(run_id);
}

void Coordinator::disinherit(Duration left) {
  // Of those who leave only time says that they have ended, and of members that are not heard.
  const TimePoint now = clock_.now();
  for (auto& [run_id, world] : unattended_) {
    world.until = std::min(world.until, now);
    world.fence.begin(now, now + left);
  }
  forget_fences();
  change_jobs([&](State& state) { state.disinherit(left, now); });
}

std::optional<Done> Coordinator::verdict() const {
  for (const auto& [run_id, job] : jobs_) {
    if (job->state.phase() == Phase::Ended) return job->state.verdict();
  }
  return ended_;
}

bool Coordinator::is_over_for(const Hello& hello) const {
  if (hello.epoch > 0 || hello.who == Hello::Who::Status || hello.at_work) return false;
  // One of another start is refused before: this one is merely late.
  if (!settings_.start.empty() && !hello.start.empty()) return false;
  const auto job = jobs_.find(hello.run_id);
  // All have left, and the agent that hosts us is about to: one that we took in would be lost.
  if (job == jobs_.end()) return !settings_.stand_alone && ended_ && ended_->failed;
  return job->second->state.phase() == Phase::Ended && job->second->state.verdict().failed &&
         !job->second->state.awaits_latecomers();
}

Survivors Coordinator::survivors() const {
  Survivors all;
  for (const auto& [run_id, job] : jobs_) {
    const Survivors left = job->state.survivors(clock_.now());
    all.members += left.members;
    all.at_work.add(left.at_work);
    if (left.world.is_later_than(all.world)) all.world = left.world;
  }
  return all;
}

bool Coordinator::is_fenced() const {
  const TimePoint now = clock_.now();
  const auto pends = [now](const auto& job) { return job.second.is_pending(now); };
  return std::ranges::any_of(unattended_, pends) ||
         std::ranges::any_of(
             jobs_, [now](const auto& job) { return job.second->state.world_fence().is_up(now); });
}

std::string Coordinator::status() const {
  const TimePoint now = clock_.now();
  json::array described;
  for (const auto& [run_id, job] : jobs_) {
    described.emplace_back(describe(job->state, now));
  }
  if (described.empty() && !settings_.stand_alone) {
    described.emplace_back(describe(State(settings_.rules, settings_.run_id), now));
  }
  return json::serialize(
      json::object{{"stand_alone", settings_.stand_alone}, {"jobs", std::move(described)}});
}

// When a link has ended, or a job.
void Coordinator::look_for_stopping_groups(bool say_so) {
  if (!on_all_stopped_) return;
  const StoppingGroups stopping = stopping_groups_of_jobs();
  const TimePoint now = clock_.now();
  if (!stopping.are_at_work(now)) {
    stopping_due_->disarm();
    // Not inside this call, which a message of a leaver has brought about: `then` may end the
    // coordinator that is still reading it.
    return boost::asio::post(
        loop_, [alive = lifetime_.token(), then = std::exchange(on_all_stopped_, {})] {
          if (alive) then();
        });
  }
  if (say_so && !std::exchange(told_stopping_, true)) {
    log::info("rendezvous",
              "{} of the nodes that leave may still be saving: this node coordinates the job until "
              "they have ended, for {} at most",
              stopping.count, format_duration(stopping.until - now));
  }
  stopping_due_->arm(stopping.until, [this] { look_for_stopping_groups(); });
}

}  // namespace elastrun::rendezvous
