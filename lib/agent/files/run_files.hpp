// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/last_writes.hpp"
#include "agent/files/log_folders.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "agent/round/worker_channel.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "process/guardian.hpp"
#include "process/signals.hpp"
#include "rendezvous/session/session.hpp"

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace elastrun::agent {

/// At the end of a node that has served the store of a round: workers of the other nodes may be
/// saving, with the help of the store. It stays until they have hung up, after its own processes
/// have ended and all has been told that it has to tell.
class StoreDrain {
 public:
  /// The loop must have been stopped. Borrows both.
  StoreDrain(boost::asio::io_context& loop, Clock& clock)
      : loop_(loop), clock_(clock), alarm_(clock_.make_alarm()) {}

  /// Runs the loop until the last visitor has gone, or `limit` is over: not at all without one. In
  /// one log line if that takes long.
  void wait(RoundStore& store, Duration limit);
  bool waiting() const { return waiting_; }
  /// A signal asks for the end, or (`insisted`) asks again: then the visitors lose the store.
  void hear_signal(bool insisted);

 private:
  void look();

  boost::asio::io_context& loop_;
  AwakeClock clock_;
  const std::unique_ptr<Alarm> alarm_;
  RoundStore* store_ = nullptr;
  TimePoint since_, until_;
  bool waiting_ = false, told_ = false;
};

/// Holds a round back, and what the rendezvous says after it, until something has been done for it
/// that may take a file system's time: directories are made. So the agent's policy knows of no
/// round that cannot be started, and its heartbeats go on meanwhile. A round that is over before
/// that is dropped: its end (Restart, Done, Lost) passes at once.
class RoundGate {
 public:
  /// `prepare` calls `done` once, inside or later on the loop; it is not called again before.
  using Prepare = std::function<void(const rendezvous::Round&, std::function<void()> done)>;
  /// What passes is posted to `run`, whose role is that of this node. Borrows it.
  RoundGate(RunContext& run, Prepare prepare) : run_(run), prepare_(std::move(prepare)) {}

  void hear(rendezvous::Push push);

 private:
  void prepare(const rendezvous::Round& round);
  void pass_on();

  RunContext& run_;
  const Prepare prepare_;
  std::deque<rendezvous::Push> held_;
  bool preparing_ = false;
  bool dropped_ = false;   // the round for which that is done
  bool prepared_ = false;  // for the next one in `held_`
  Lifetime lifetime_;
};

/// The directories of a run, from its first round to their end, and what is waited for before this
/// node may go: its files, its console, and workers of other nodes.
class RunFiles {
 public:
  /// `near`: its directories are on this machine. `keeps_output`: of workers, in files. Borrows
  /// all.
  RunFiles(RunContext& run, logs::Layout& layout, WorkerChannel& channel, bool near,
           bool keeps_output);

  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  /// Posts what the rendezvous says; rounds are held back until their directories are there.
  void pass(rendezvous::Push push) { gate_.hear(std::move(push)); }
  Result<Folders> take(const rendezvous::Round& round) { return folders_.take(round); }
  /// Whether it was for a wait of this object, which it may end.
  bool signalled(process::Demand demand);
  void shorten() { last_writes_.shorten(); }
  /// Removes what is only temporary, or leaves that to the guardian, if no descriptor is free for
  /// it or its file system does not answer; but not output that -r or -t asked for, nor what
  /// explains a failure. The directory if it stays. A failure waits for no log here: people are
  /// told of it first.
  std::string settle(bool succeeded);
  /// Waits until files and console have it, then for workers of other nodes, who may use the store
  /// of this one for so long.
  void finish(RoundStore& store, Duration store_needed);

  /// Where workers find the channel, asked once the run's directory exists; empty: none.
  std::string channel_path();

 private:
  RunContext& run_;
  logs::Layout& layout_;
  WorkerChannel& channel_;
  const bool near_, keeps_output_;
  LogFolders folders_;
  RoundGate gate_;
  LastWrites last_writes_;
  StoreDrain store_drain_;
};

}  // namespace elastrun::agent
