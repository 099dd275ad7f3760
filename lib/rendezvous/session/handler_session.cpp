// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/session/handler_session.hpp"

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/blocking_calls.hpp"
#include "rendezvous/membership/preemption.hpp"
#include "rendezvous/membership/restart_rule.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/membership/rules.hpp"
#include "rendezvous/membership/standstill.hpp"
#include "rendezvous/membership/world.hpp"
#include "rendezvous/session/handler.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/blocking_store.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <utility>

/// What the agents of a round have to tell each other when a user's handler brought them together.
/// Both calls wait; they are for the handler's thread.
namespace elastrun::rendezvous {

/// What this agent brings along.
struct Contribution {
  Node self;
  std::int64_t round = 0;       // rounds that it has seen
  int attempt = 0;              // restarts that it knows of
  BootstrapStoreInfo master{};  // what the user fixed; empty and 0: nothing
};

/// Everybody's ranks. Rank 0 collects the nodes, and all of them compute the same world from its
/// list; attempt and round number are the highest that any of them knows. Fails with Rendezvous if
/// what the handler says is impossible, with Protocol if what the store holds means nothing,
/// otherwise as the store does.
Result<Round> agree_on_round(const RendezvousInfo& info, Contribution own);

/// Waits until all agents of the round have come here, as torchrun's exit barrier.
Status leave_together(const RendezvousInfo& info, Duration timeout);
/// The same for one that has come there already.
Status await_all_left(const RendezvousInfo& info, Duration timeout);

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

Result<Contribution> from_text(const json::value& value) {
  Contribution one;
  if (from_json(value, one).empty()) return one;
  return fail(Code::Protocol, "the store of the round holds no node where one belongs");
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

}  // namespace

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
    const auto one = from_text(value);
    if (!one) return std::unexpected(one.error());
    if (one->self.node_rank != static_cast<int>(nodes.size())) {
      return fail(Code::Rendezvous, "two nodes were given the same rank");
    }
    nodes.push_back(one->self);
    // The furthest of all, since a new node knows of no rounds.
    own.round = std::max(own.round, one->round);
    own.attempt = std::max(own.attempt, one->attempt);
  }
  // All make the same world from the same list, so no message has to tell it.
  World world = make_world(std::move(nodes), RankOrder::Fixed, own.master.master_addr,
                           own.master.master_port);
  world.id.round = own.round + 1;
  world.all.attempt = world.spent = own.attempt;
  return round_of(world, info.rank);
}

Status leave_together(const RendezvousInfo& info, Duration timeout) {
  if (info.world_size < 2) return {};
  // A counter and a key, since a store can wait for a key but not for a number.
  const auto left = info.store->add(kLeaving, 1);
  if (!left) return std::unexpected(left.error());
  // add() is atomic in the store, so exactly one node reads the full count and sets the key.
  if (*left == info.world_size) return info.store->set(kAllLeft, "1");
  return await_all_left(info, timeout);
}

Status await_all_left(const RendezvousInfo& info, Duration timeout) {
  return info.store->wait({kAllLeft}, timeout);
}

namespace {

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

class UsersSession final : public HandlerSession {
 public:
  UsersSession(boost::asio::io_context& loop, Clock& clock, Handler handler,
               HandlerSettings settings)
      : loop_(loop),
        clock_(clock),
        handler_(std::move(handler)),
        settings_(std::move(settings)),
        backend_(handler_->get_backend()),
        run_id_(handler_->get_run_id()),
        restart_rule_(restart_settings(settings_.job, run_id_)),
        preemption_(settings_.job.preempt_ack_all),
        poll_(clock.make_alarm()),
        deadline_(clock.make_alarm()),
        stacks_due_(clock.make_alarm()),
        preempt_due_(clock.make_alarm()),
        // Refuse rather than call on the loop: a user's handler may wait for minutes.
        calls_(loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse) {}
  ~UsersSession() override { lifetime_.end(); }

  void open(OnPush on_push) override { on_push_ = std::move(on_push); }

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
    if (std::holds_alternative<Started>(report)) {
      poll_later();
    } else if (auto* failed = std::get_if<Failed>(&report)) {
      poll_->disarm();
      fail_round(std::move(failed->cause));
    } else if (std::holds_alternative<Succeeded>(report)) {
      poll_->disarm();
      running_ = false;
      if (preemption_.is_asked()) return end_preempted();
      await_others();
    } else if (std::holds_alternative<Leaving>(report)) {
      left_ = true;
    } else if (std::holds_alternative<Reached>(report) ||
               std::holds_alternative<AskPreempt>(report)) {
      tell_preemption(report);
    } else {
      report_stacks(std::move(report));
    }
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

  std::string backend() const override { return backend_; }
  std::string run_id() const override { return run_id_; }
  bool agent_serves_store() const override {
    return !assignment_ || !assignment_->info.bootstrap_store_info;
  }
  bool workers_are_clients() const override {
    return !assignment_ || assignment_->workers_are_clients;
  }

 private:
  std::string name() const { return fmt::format("the rendezvous handler {}", backend_); }

  /// Pushes, later.
  void push(Push push) {
    boost::asio::post(loop_, [this, alive = lifetime_.token(), push = std::move(push)]() mutable {
      if (alive && !closed_) on_push_(std::move(push));
    });
  }

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
    const auto& self = round.members[static_cast<std::size_t>(round.group_rank)];
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

  /// Of this node alone, as the stacks: handlers carry no words to the others.
  void tell_preemption(const Report& report) {
    const TimePoint now = clock_.now();
    if (const auto* ask = std::get_if<AskPreempt>(&report)) {
      preemption_.ask(ask->why, ask->deadline, now);
    } else if (const auto* reached = std::get_if<Reached>(&report)) {
      restart_rule_.saved(reached->checkpoint);
      preemption_.says(kHandlerPeer, *reached, now);
    }
    go_on_preempting();
  }

  void go_on_preempting() {
    for (const auto& [peer, told] : preemption_.take()) push(*told);
    if (preemption_.take_over()) return end_preempted();
    const auto due = preemption_.deadline();
    if (!due) return preempt_due_->disarm();
    preempt_due_->arm(*due, [this] {
      preemption_.tick(clock_.now());
      go_on_preempting();
    });
  }

  void end_preempted() {
    running_ = false;
    push(Done{true, {.kind = Cause::Kind::Preempted, .text = preemption_.text()}});
  }

  /// Handlers do not carry them to other nodes: the report is about this one alone.
  void report_stacks(Report report) {
    if (!running_) standstill_.broken_up();
    if (const auto* progress = std::get_if<ProgressReport>(&report)) {
      standstill_.says(kHandlerPeer, *progress, clock_.now());
    } else if (auto* stacks = std::get_if<NodeStacks>(&report)) {
      standstill_.answers(kHandlerPeer, std::move(*stacks), clock_.now());
    } else {
      standstill_.asks(kHandlerPeer, clock_.now());
    }
    tell_stacks();
  }

  void tell_stacks() {
    for (const auto& [peer, told] : standstill_.take()) push(*told);
    const auto due = standstill_.deadline();
    if (!due) return stacks_due_->disarm();
    stacks_due_->arm(*due, [this] {
      if (!running_) standstill_.broken_up();
      standstill_.tick(clock_.now());
      tell_stacks();
    });
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
  boost::asio::io_context& loop_;
  Clock& clock_;
  const Handler handler_;
  const HandlerSettings settings_;
  const std::string backend_, run_id_;
  OnPush on_push_;

  // Changes while running
  RestartRule restart_rule_;
  std::int64_t round_ = 0;
  std::optional<Assignment> assignment_;
  bool running_ = false;  // in a round that has not ended yet
  bool left_ = false, closed_ = false;
  Then on_closed_;
  Standstill standstill_;
  Preemption preemption_;
  TimePoint not_before_{};  // no round is joined
  std::unique_ptr<Alarm> poll_, deadline_, stacks_due_, preempt_due_;
  Lifetime lifetime_;
  files::BlockingCalls calls_;  // last: its answers use all of the above
};

}  // namespace

std::unique_ptr<HandlerSession> make_handler_session(boost::asio::io_context& loop, Clock& clock,
                                                     Handler handler, HandlerSettings settings) {
  return std::make_unique<UsersSession>(loop, clock, std::move(handler), std::move(settings));
}

}  // namespace elastrun::rendezvous
