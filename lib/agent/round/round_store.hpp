// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "logs/layout.hpp"
#include "net/endpoint.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/job_spec.hpp"
#include "store/server.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// The store that this node would serve to the workers of a round, if it got group rank 0, or were
/// the first of a role that restarts alone. It
/// listens before the node joins, so the announced port cannot be taken by anybody else; each round
/// gets a fresh one. That of the round before goes on until the new one begins: when this node asks
/// for a new round, workers of others may still be saving, with the help of the store.
class RoundStore {
 public:
  virtual ~RoundStore() = default;
  /// Before each join: the port to announce. Fails with Store (port in use, ...).
  virtual Result<std::uint16_t> prepare() = 0;
  /// Of which ports prepare() needs one that is free; none: any will do, or it holds one.
  virtual std::optional<rendezvous::StorePlan> needs() const { return std::nullopt; }
  /// The round is known, and no member of the one before is at work any more: serve its members, or
  /// close when another node does that.
  virtual void begin(const rendezvous::Round& round) = 0;
  /// False when workers are to host the store themselves (TORCH_DISABLE_SHARE_RDZV_TCP_STORE).
  virtual bool serves_workers() const = 0;
  /// Whether workers of other nodes work with it, and their agents say when they have ended.
  virtual bool serves_others() const { return false; }
  /// No round follows: what is left to do is to serve those who still save.
  virtual void rounds_are_over() {}
  /// Connections of the last round's workers that are open.
  virtual std::size_t visitors() const { return 0; }
  /// `heard` is told when the first rank of a round has connected to its store (false), and when
  /// all have (true), where the store is here and the ranks say so, as torch does.
  virtual void on_join(std::function<void(bool all)> heard) { (void)heard; }
  /// What workers have asked of the stores that this node has served in all rounds.
  virtual std::uint64_t requests() const { return 0; }
  /// When a request was the last to change something in a store of this node; min(): none has.
  virtual TimePoint last_change() const { return TimePoint::min(); }
};

/// A TCPStore server of the agent. `plan`: how to bind it, instead of what the session says; for
/// sessions without a coordinator: then it serves everybody unless all members are known by
/// address. Without it, only the members: a name is looked up first, for 5 s at most. It closes
/// where the session's handler brings a store. Borrows the session.
std::unique_ptr<RoundStore> make_served_store(boost::asio::io_context& loop, Clock& clock,
                                              rendezvous::Session& session,
                                              std::optional<rendezvous::StorePlan> plan);

/// Only a port, held for worker 0.
std::unique_ptr<RoundStore> make_workers_store();

/// Where workers of a round may come from: the addresses that the members have, those from which
/// the coordinator has seen them come, and loopback.
struct Visitors {
  std::vector<boost::asio::ip::address> addresses;
  std::vector<std::string> names;  // of members of which no address is known
};
/// Pure.
Visitors visitors_of(const rendezvous::Round& round);

/// Where the workers of this node meet the others: of a static rendezvous where this node was told,
/// as with torchrun, since its agent has come there; that need not lead there from other nodes.
net::Endpoint meeting_place(const spec::JobSpec& spec, const rendezvous::Round& round);

/// The directories of one start of workers; empty paths with --log-dir /dev/null.
struct Folders {
  std::string attempt;
  std::vector<std::string> ranks;  // by local rank
};
/// Makes them; may wait for the file system. Fails with Io.
Result<Folders> make_folders(logs::Layout& layout, int attempt, int workers);

}  // namespace elastrun::agent
