// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/session/make_session.hpp"

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/blocking_calls.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/discovery/locator.hpp"
#include "rendezvous/election/make_elected.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/state.hpp"
#include "rendezvous/membership/world.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/session/munge.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/blocking_store.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <utility>

namespace elastrun::rendezvous {

// What the agents of a round have to tell each other when a user's handler brought them together.
// It waits, and is for the handler's thread.

/// What this agent brings along.
struct Contribution {
  Node self;
  std::int64_t round = 0;       // rounds that it has seen
  int attempt = 0;              // restarts that it knows of
  BootstrapStoreInfo master{};  // what the user fixed; empty and 0: nothing
};

void members(Codec& codec, Contribution& one) {
  members(codec, one.self);
  codec("round", one.round);
  codec("attempt", one.attempt);
}

namespace {

constexpr const char* kList = "elastrun/nodes";
constexpr const char* kLeaving = "elastrun/leaving";
constexpr const char* kAllLeft = "elastrun/all_left";

std::string key_of(int rank) {
  return fmt::format("elastrun/node/{}", rank);
}

Status check(const RendezvousInfo& info, const Contribution& own) {
  if (info.world_size < 1 || info.rank < 0 || info.rank >= info.world_size) {
    return fail(Code::Rendezvous, fmt::format("it gave this node rank {} in a world of {} nodes",
                                              info.rank, info.world_size));
  }
  if (info.world_size > 1 && !info.store) {
    return fail(Code::Rendezvous,
                fmt::format("a world of {} nodes needs a store in its RendezvousInfo, for the "
                            "agents to tell each other how many workers they have",
                            info.world_size));
  }
  if (info.world_size > 1 && own.self.address.empty() && !info.bootstrap_store_info) {
    return fail(Code::Rendezvous,
                fmt::format("a world of {} nodes needs bootstrap_store_info in its RendezvousInfo, "
                            "or local_addr in the WorkerSpec: an address by which the others reach "
                            "this node",
                            info.world_size));
  }
  return {};
}

/// Rank 0's list of all nodes, in the order of their ranks.
Result<std::string> make_list(const RendezvousInfo& info, const std::string& own) {
  json::array list;
  for (int rank = 0; rank < info.world_size; ++rank) {
    // One after another: get() blocks until that node has come, and the slowest decides in any
    // order.
    auto text = rank == 0 ? Result<std::string>(own) : info.store->get(key_of(rank));
    if (!text) return std::unexpected(text.error().context("waiting for the other agents"));
    auto node = parse_json(*text);
    if (!node) return std::unexpected(node.error());
    list.push_back(std::move(*node));
  }
  auto text = json::serialize(list);
  if (info.world_size > 1) {
    if (const auto told = info.store->set(kList, text); !told) return std::unexpected(told.error());
  }
  return text;
}

Result<std::string> await_list(const RendezvousInfo& info, const std::string& own) {
  const auto told = info.store->set(key_of(info.rank), own);
  if (!told) return std::unexpected(told.error());
  // One key for all, and not each node's: in a world of n nodes that would be n * n requests.
  return info.store->get(kList);
}

/// Everybody's ranks. Rank 0 collects the nodes, and all of them compute the same world from its
/// list; attempt and round number are the highest that any of them knows. Fails with Rendezvous if
/// what the handler says is impossible, with Protocol if what the store holds means nothing,
/// otherwise as the store does.
Result<Round> agree_on_round(const RendezvousInfo& info, Contribution own) {
  if (const auto sound = check(info, own); !sound) return std::unexpected(sound.error());
  // The rank that the handler gave is the order of the list, whatever --node-rank said.
  own.self.node_rank = info.rank;
  const auto text = json::serialize(to_json(own));
  const auto list = info.rank == 0 ? make_list(info, text) : await_list(info, text);
  if (!list) return std::unexpected(list.error());
  const auto parsed = parse_json(*list);
  if (!parsed) return std::unexpected(parsed.error());
  if (!parsed->is_array() ||
      parsed->get_array().size() != static_cast<std::size_t>(info.world_size)) {
    return fail(Code::Protocol, "the agents do not agree about the size of the world");
  }
  std::vector<Node> nodes;
  for (const auto& value : parsed->get_array()) {
    Contribution one;
    if (!from_json(value, one).empty())
      return fail(Code::Protocol, "the store of the round holds no node where one belongs");
    if (one.self.node_rank != static_cast<int>(nodes.size()))
      return fail(Code::Rendezvous, "two nodes were given the same rank");
    nodes.push_back(std::move(one.self));
    // The furthest of all, since a new node knows of no rounds.
    own.round = std::max(own.round, one.round);
    own.attempt = std::max(own.attempt, one.attempt);
  }
  // All make the same world from the same list, so no message has to tell it.
  World world = make_world(std::move(nodes), RankOrder::Fixed, own.master.master_addr,
                           own.master.master_port);
  world.id.round = own.round + 1;
  world.all.attempt = world.spent = own.attempt;
  return round_of(world, info.rank);
}

/// Waits until all agents have come to the end of the round, for one that has come there already.
Status await_all_left(const RendezvousInfo& info, Duration timeout) {
  return info.store->wait({kAllLeft}, timeout);
}
/// Comes there, and waits for the others: torchrun's exit barrier.
Status leave_together(const RendezvousInfo& info, Duration timeout) {
  if (info.world_size < 2) return {};
  // A counter and a key, since a store can wait for a key but not for a number.
  const auto left = info.store->add(kLeaving, 1);
  if (!left) return std::unexpected(left.error());
  // add() is atomic in the store, so exactly one node reads the full count and sets the key.
  if (*left == info.world_size) return info.store->set(kAllLeft, "1");
  return await_all_left(info, timeout);
}

constexpr Peer kHandlerPeer = 1;
constexpr const char* kLoopback = "127.0.0.1";
// A call that is given up only at its end must not last.
constexpr auto kAnotherWait = std::chrono::seconds(1);

/// What a complete round comes to, with what is needed to end it.
struct Assignment {
  RendezvousInfo info;
  Round round;
  bool workers_are_clients = true;
};

/// Calls into the user's code, from which exceptions may come.
template <class Call>
auto guarded(const Handler& handler, Call call) -> decltype(call(*handler)) {
  // The handler is a user's: what it throws on this thread would end the agent.
  try {
    return call(*handler);
  } catch (const std::exception& thrown) {
    return fail(Code::Rendezvous, fmt::format("an exception: {}", thrown.what()));
  } catch (...) {
    return fail(Code::Rendezvous, "an exception that does not derive from std::exception");
  }
}

Result<Assignment> agree_on_assignment(RendezvousHandler& handler, Contribution own) {
  // It blocks as long as the user's handler likes, so all of this function runs on a thread of
  // BlockingCalls.
  auto info = handler.next_rendezvous();
  if (!info) return std::unexpected(info.error());
  Assignment assignment{std::move(*info), {}, true};
  if (const auto& said = assignment.info.bootstrap_store_info) {
    // What the WorkerSpec names wins, address and port apart, as in torch's agent.
    if (own.master.master_addr.empty()) own.master.master_addr = said->master_addr;
    if (own.master.master_port == 0) own.master.master_port = said->master_port;
    assignment.workers_are_clients = handler.use_agent_store();
  }
  if (assignment.info.world_size == 1 && own.self.address.empty()) own.self.address = kLoopback;
  auto round = agree_on_round(assignment.info, std::move(own));
  if (!round) return std::unexpected(round.error());
  assignment.round = std::move(*round);
  return assignment;
}

class UsersSession final : public PushingSession {
 public:
  UsersSession(boost::asio::io_context& loop, Clock& clock, Handler handler,
               HandlerSettings settings)
      : PushingSession(loop, clock, handler->get_backend(), handler->get_run_id()),
        handler_(std::move(handler)),
        settings_(std::move(settings)),
        restart_rule_(restart_settings(settings_.job, run_id_)),
        preemption_(settings_.job.preempt_ack_all),
        poll_(clock.make_alarm()),
        deadline_(clock.make_alarm()),
        due_(clock.make_alarm()),
        // Refuse rather than call on the loop: a user's handler may wait for minutes.
        calls_(loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse) {}

  void join(Node self) override {
    if (const auto memory = std::exchange(self.memory, nullptr)) {
      restart_rule_.learn(*memory, clock_.now());
    }
    // The restart rule's delay. The alarm of the polls is free: no round runs.
    if (clock_.now() < not_before_) {
      return poll_->arm(not_before_, [this, self = std::move(self)] { join(self); });
    }
    Contribution own{std::move(self), round_, restart_rule_.spent(), settings_.master};
    calls_.make(
        name(),
        [handler = handler_, own = std::move(own)] {
          return guarded(handler,
                         [&own](RendezvousHandler& one) { return agree_on_assignment(one, own); });
        },
        [this](Result<Assignment> assignment) { assigned(std::move(assignment)); });
  }

  void report(Report report) override {
    const TimePoint now = clock_.now();
    if (std::holds_alternative<Started>(report)) return poll_later();
    if (std::holds_alternative<Leaving>(report)) return void(left_ = true);
    if (auto* failed = std::get_if<Failed>(&report)) {
      poll_->disarm();
      return fail_round(std::move(failed->cause));
    }
    if (std::holds_alternative<Succeeded>(report)) {
      poll_->disarm();
      running_ = false;
      return preemption_.is_asked() ? end_preempted() : await_others();
    }
    // Handlers carry no words to the other nodes: the rest is about this one alone.
    if (!running_) standstill_.broken_up();
    if (const auto* ask = std::get_if<AskPreempt>(&report)) {
      preemption_.ask(ask->why, ask->deadline, now);
    } else if (const auto* reached = std::get_if<Reached>(&report)) {
      restart_rule_.saved(reached->checkpoint);
      preemption_.says(kHandlerPeer, *reached, now);
    } else if (const auto* progress = std::get_if<ProgressReport>(&report)) {
      standstill_.says(kHandlerPeer, *progress, now);
    } else if (auto* stacks = std::get_if<NodeStacks>(&report)) {
      standstill_.answers(kHandlerPeer, std::move(*stacks), now);
    } else {
      standstill_.asks(kHandlerPeer, now);
    }
    deliver();
  }

  void close(Then on_closed) override {
    closed_ = true;
    poll_->disarm();
    on_closed_ = std::move(on_closed);
    // As torchrun on a signal: shutdown() would close the rendezvous for the nodes that stay.
    if (left_) return end();
    // A user's shutdown() may hang; the agent ends all the same.
    deadline_->arm(clock_.now() + settings_.close_timeout, [this] { end(); });
    calls_.make(
        name(),
        [handler = handler_] {
          return guarded(handler,
                         [](RendezvousHandler& one) -> Result<bool> { return one.shutdown(); });
        },
        [this](Result<bool> done) {
          if (!done || !*done) log::warning("rendezvous", "{} did not shut down", name());
          end();
        });
  }

  bool agent_serves_store() const override {
    return !assignment_ || !assignment_->info.bootstrap_store_info;
  }
  bool workers_are_clients() const override {
    return !assignment_ || assignment_->workers_are_clients;
  }

 private:
  std::string name() const { return fmt::format("the rendezvous handler {}", backend_); }

  void assigned(Result<Assignment> assignment) {
    if (closed_) return;
    if (!assignment) return refused(assignment.error());
    assignment_ = std::move(*assignment);
    Round& round = assignment_->round;
    round_ = round.number;
    // A node that joins late has seen none of the failures, and all count them alike.
    restart_rule_.learn(round.attempt);
    round.restarts_left = restart_rule_.left();
    running_ = true;
    const auto& self = round.self();
    standstill_.assigned(kHandlerPeer, round.number, self, round.rank_base);
    preemption_.assigned(kHandlerPeer, round.number, 0);
    push(RoundReady{round});
  }

  void refused(const Error& error) {
    const std::string text = fmt::format("{}: {}", name(), error.text);
    Cause cause{.kind = Cause::Kind::Closed, .text = text};
    // They stand for torch's RendezvousTimeoutError, RendezvousClosedError and
    // RendezvousGracefulExitError; all others are faults of the handler.
    switch (error.code) {
      case Code::Timeout:
        cause.kind = Cause::Kind::Timeout;
        return push(Done{true, std::move(cause)});
      case Code::Closed:
        return push(Done{true, std::move(cause)});
      case Code::Cancelled:
        log::info("rendezvous", "Rendezvous gracefully exited: {}", error.text);
        return push(Done{false, std::move(cause)});
      default:
        return push(Lost{text, false});
    }
  }

  void fail_round(Cause cause) {
    // A poll may have ended this round already, for a node that waits: the workers that are stopped
    // for it are not a failure.
    if (!std::exchange(running_, false)) return;
    if (preemption_.is_asked()) return end_preempted();
    cause.kind = Cause::Kind::WorkerFailed;
    restart(std::move(cause));
  }

  void restart(Cause cause) {
    const TimePoint now = clock_.now();
    const RestartDecision decision = restart_rule_.decide(cause, now);
    cause.rule = decision.rule, cause.hopeless = decision.hopeless;
    auto memory = restart_rule_.carried_memory(now);
    if (!decision.restarts) return push(Done{true, std::move(cause), std::move(memory)});
    not_before_ = now + decision.delay;
    push(Restart{std::move(cause), decision.attempt_spent, decision.restarts_left, decision.delay,
                 std::move(memory)});
  }

  void deliver() {
    for (const auto& [peer, told] : standstill_.take()) push(*told);
    for (const auto& [peer, told] : preemption_.take()) push(*told);
    if (preemption_.take_over()) end_preempted();
    const auto first = standstill_.deadline(), second = preemption_.deadline();
    if (!first && !second) return due_->disarm();
    due_->arm(std::min(first.value_or(TimePoint::max()), second.value_or(TimePoint::max())),
              [this] {
                if (!running_) standstill_.broken_up();
                standstill_.tick(clock_.now());
                preemption_.tick(clock_.now());
                deliver();
              });
  }

  void end_preempted() {
    running_ = false;
    push(Done{true, {.kind = Cause::Kind::Preempted, .text = preemption_.text()}});
  }

  void await_others() {
    if (assignment_->info.world_size == 1) return push(Done{});
    wait_at_barrier(leave_together, settings_.job.exit_barrier_timeout);
  }

  void wait_at_barrier(Status (*wait)(const RendezvousInfo&, Duration), Duration limit) {
    calls_.make(
        name(),
        [handler = handler_, info = assignment_->info, limit, wait] {
          return guarded(handler, [&](RendezvousHandler&) { return wait(info, limit); });
        },
        [this](const Status& all_left) { passed(all_left); });
  }

  void passed(const Status& all_left) {
    if (closed_) return;
    // The others may work with the store of this node: its agent knows whether they do.
    const bool serves = agent_serves_store() && assignment_->round.group_rank == 0;
    if (!all_left && all_left.error().code == Code::Timeout && serves) {
      return wait_at_barrier(await_all_left, kAnotherWait);
    }
    if (!all_left) log::warning("rendezvous", "exit barrier: {}", all_left.error().text);
    push(Done{});
  }

  void poll_later() {
    // As torchrun, which asks num_nodes_waiting() at each look at its workers.
    poll_->arm(clock_.now() + from_seconds(settings_.job.monitor_interval), [this] { poll(); });
  }

  void poll() {
    calls_.make(
        name(),
        [handler = handler_] {
          return guarded(handler, [](RendezvousHandler& one) -> Result<int> {
            return one.num_nodes_waiting();
          });
        },
        // The answer may come in a later round, of which it says nothing.
        [this, round = round_](Result<int> waiting) {
          if (closed_ || !running_ || round != round_) return;
          if (!waiting) return push(Lost{fmt::format("{}: {}", name(), waiting.error().text)});
          // Armed after the answer and not at an interval, so that calls into a slow handler cannot
          // pile up.
          if (*waiting < 1) return poll_later();
          running_ = false;
          Cause cause{.kind = Cause::Kind::NodeJoined};
          cause.text =
              fmt::format("{} new node{} to join", *waiting, *waiting == 1 ? " waits" : "s wait");
          restart(std::move(cause));
        });
  }

  void end() {
    deadline_->disarm();
    // The answer of shutdown() and the alarm may both come; the first one ends.
    if (auto on_closed = std::exchange(on_closed_, {})) {
      boost::asio::post(loop_, std::move(on_closed));
    }
  }

  // Set at construction
  const Handler handler_;
  const HandlerSettings settings_;

  // Changes while running
  RestartRule restart_rule_;
  std::int64_t round_ = 0;
  std::optional<Assignment> assignment_;
  bool running_ = false;  // in a round that has not ended yet
  bool left_ = false;
  Then on_closed_;
  Standstill standstill_;
  Preemption preemption_;
  TimePoint not_before_{};  // no round is joined
  std::unique_ptr<Alarm> poll_, deadline_, due_;
  files::BlockingCalls calls_;  // last: its answers use all of the above
};

constexpr Peer kSelf = 1;

/// No other node is waited for, whatever its node rank.
Rules for_one_node(Rules rules) {
  rules.min_nodes = 1;
  rules.fixed_ranks = false;
  return rules;
}

class LocalSession final : public PushingSession {
 public:
  LocalSession(boost::asio::io_context& loop, Clock& clock, SessionSettings settings)
      : PushingSession(loop, clock, settings.backend, settings.run_id),
        state_(for_one_node(settings.rules), settings.run_id, settings.master_addr,
               settings.master_port) {}

  void join(Node self) override {
    // Without a previous world: no other coordinator can have formed one, so nothing has to be
    // fenced.
    state_.join(kSelf, std::move(self), PreviousWorld{}, clock_.now());
    deliver();
  }

  void report(Report report) override {
    if (auto* leaving = std::get_if<Leaving>(&report)) {
      // No other node has to wait for this group, or to be told.
      leaving->grace = {}, leaving->unable = leaving->killed = false;
    }
    state_.report(kSelf, std::move(report), clock_.now());
    deliver();
  }

  void close(Then on_closed) override {
    closed_ = true;
    if (alarm_) alarm_->disarm();
    // Posted, because what it calls may destroy this session, from which we have yet to return.
    boost::asio::post(loop_, std::move(on_closed));
  }

 private:
  void deliver() {
    for (const Delivery& delivery : state_.take()) push(to_push(delivery.notice));
    const auto due = state_.deadline();
    if (!due) {
      if (alarm_) alarm_->disarm();
      return;
    }
    // Made when there is something to wait for: most jobs of one node never have a deadline.
    if (!alarm_) alarm_ = clock_.make_alarm();
    alarm_->arm(*due, [this] {
      state_.tick(clock_.now());
      deliver();
    });
  }

  State state_;
  std::unique_ptr<Alarm> alarm_;
};

using net::is_loopback_host;
using spec::RendezvousConfig;

/// Where no other machine can connect: the address of this machine by which it is announced.
/// Without --local-addr that is where its connection to the coordinator at `host` comes from.
std::string loopback_of(const std::string& host, const std::string& local_addr) {
  const auto own = net::parse_address(local_addr);
  if (own.is_loopback()) return own.to_string();
  const auto address = net::parse_address(local_addr.empty() ? host : local_addr);
  // A socket that is bound to ::1 takes no connection to 127.0.0.1, nor the other way round
  // (ipv6(7)); what connects to 127.0.0.2 comes from 127.0.0.1 all the same.
  return address.is_v6() && address.is_loopback() ? address.to_string() : "127.0.0.1";
}

/// Null where MUNGE is not to be had: then the job is as open as anywhere else.
std::shared_ptr<const net::Sealer> munge_sealer(boost::asio::io_context& loop,
                                                const SessionSettings& settings) {
  auto munge = load_munge();
  if (!munge) {
    log::debug("rendezvous", "agents are not authenticated by MUNGE: {}", munge.error().text);
    return nullptr;
  }
  log::debug("rendezvous", "agents of the job \"{}\" are authenticated by MUNGE", settings.run_id);
  // Where the scheduler has said who hosts, that is a node like this one. An endpoint that a user
  // has given may be a coordinator outside the cluster.
  return net::make_sealer("",
                          make_munge_exchange(loop, std::move(*munge), !settings.start.empty()));
}

void warn_of_openness(const SessionSettings& settings, const std::string& place) {
  log::warning("rendezvous",
               "the job \"{}\" has no secret: anyone who reaches {} can join or stop it. Set "
               "ELASTRUN_SECRET, or secret_file in --rdzv-conf, to the same text on all nodes",
               settings.run_id, place);
}

/// Where the coordinator and the store of a fixed endpoint are.
StorePlan fixed_place(SessionSettings& settings, const net::Endpoint& endpoint) {
  if (settings.backend == spec::backend::kStatic) {
    // As in torchrun's static rendezvous, where the node of rank 0 opens the store and nothing is
    // voted on.
    settings.config.is_host = settings.node_rank == 0;
    settings.master_addr = net::is_wildcard(endpoint.host) ? "" : endpoint.host;
    settings.master_port = endpoint.port;
    // Agents and workers all come to MASTER_PORT of node 0.
    return {.bind_address = "127.0.0.1", .lent_port = settings.node_rank == 0};
  }
  // Only where both ends are loopback, and no other node can come: then the store listens for this
  // machine alone.
  const bool alone = settings.rules.max_nodes == 1 && is_loopback_host(endpoint.host) &&
                     (settings.local_addr.empty() || is_loopback_host(settings.local_addr));
  return {.bind_address = alone ? loopback_of(endpoint.host, settings.local_addr) : "",
          .ports = settings.config.store_port};
}

}  // namespace

std::unique_ptr<Session> make_handler_session(boost::asio::io_context& loop, Clock& clock,
                                              Handler handler, HandlerSettings settings) {
  return std::make_unique<UsersSession>(loop, clock, std::move(handler), std::move(settings));
}

std::unique_ptr<Session> make_local_session(boost::asio::io_context& loop, Clock& clock,
                                            SessionSettings settings) {
  return std::make_unique<LocalSession>(loop, clock, std::move(settings));
}

// A secret wins over MUNGE: a user has chosen it, and it also admits nodes outside the cluster and
// a colleague's, whose credentials are another user's.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              SessionSettings settings) {
  const RendezvousConfig& config = settings.config;
  const auto secret = read_secret(config.secret_file, settings.secret);
  if (!secret) return std::unexpected(secret.error());
  auto sealer = secret->empty() && settings.try_munge ? munge_sealer(loop, settings) : nullptr;
  const bool open = secret->empty() && !sealer;
  if (!sealer) sealer = net::make_sealer(*secret);
  const bool fixed_ranks = settings.backend == spec::backend::kStatic;
  if (fixed_ranks) settings.rules.fixed_ranks = true;
  const bool by_etcd =
      settings.backend == spec::backend::kEtcd || settings.backend == spec::backend::kEtcdV2;
  if (by_etcd || settings.backend == spec::backend::kFile || config.meets_in_file) {
    if (open) warn_of_openness(settings, "the coordinator");
    if (config.advertise.empty()) settings.config.advertise = settings.local_addr;
    auto lease = (by_etcd ? make_etcd_lease : make_file_lease)(loop, clock, settings);
    if (!lease) return std::unexpected(lease.error());
    StorePlan store{.bind_address = "", .ports = config.store_port};
    auto locator = make_elected_locator(loop, clock, sealer, std::move(*lease), settings);
    return make_remote_session(loop, clock, sealer, std::move(locator), std::move(settings),
                               std::move(store));
  }
  const auto endpoint =
      net::parse_endpoint(settings.endpoint, fixed_ranks ? spec::kStaticPort : spec::kC10dPort);
  if (open && endpoint) {
    const bool loopback = is_loopback_host(endpoint->host);
    const auto port = fmt::format("port {} of this machine", endpoint->port);
    if (!loopback || settings.rules.max_nodes > 1)
      warn_of_openness(settings,
                       loopback || net::is_wildcard(endpoint->host) ? port : endpoint->host);
  }
  if (!fixed_ranks && settings.backend != spec::backend::kC10d) {
    return fail(Code::Usage,
                fmt::format("the rendezvous backend \"{}\" is not known; the backends are "
                            "static, c10d, etcd, etcd-v2 and file",
                            settings.backend));
  }
  if (!endpoint) return std::unexpected(endpoint.error());
  StorePlan store = fixed_place(settings, *endpoint);
  auto locator = make_fixed_locator(loop, clock, sealer, settings, *endpoint);
  return make_remote_session(loop, clock, sealer, std::move(locator), std::move(settings),
                             std::move(store));
}

}  // namespace elastrun::rendezvous
