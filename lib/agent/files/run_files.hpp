// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/system_clock.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "logs/layout.hpp"
#include "process/guardian.hpp"
#include "process/signals.hpp"
#include "rendezvous/membership/round.hpp"
#include "rendezvous/session/session.hpp"
#include "workers/channel.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// The end of a run: waits until files and console have taken what is left, on the loop, so that a
/// signal can end the wait. Who takes nothing at all for five minutes loses the rest, said so: the
/// workers have ended long ago, and a reader that hangs must not keep nodes for ever.
class LastWrites {
 public:
  static constexpr Duration kTimeLimit = std::chrono::minutes(5);

  /// Borrows them all. The loop must have been stopped. `limit` is what a signal leaves.
  LastWrites(boost::asio::io_context& loop, Clock& clock, logs::Console& console,
             std::vector<files::BlockingCalls*> files, Duration limit)
      : loop_(loop),
        console_(console),
        clock_(clock),
        limit_(limit),
        alarm_(clock_.make_alarm()),
        limit_alarm_(clock_.make_alarm()) {
    for (auto* calls : files) files_.push_back({calls});
  }

  /// Runs the loop until the files are written; `console`: and everything is shown.
  void wait(bool console);
  bool waiting() const { return waiting_; }
  /// A signal asks for the end: no more than `limit` from now on, also of a wait that comes later.
  void shorten();
  /// Files of these threads are waited for no longer: their file system has not answered. It has
  /// another two seconds for that, in which the loop runs, and more as long as it does. What each
  /// is busy with that is given up.
  std::vector<std::string> give_up_on(const std::vector<const files::BlockingCalls*>& calls);
  /// The same, with an error in the log for each: something is lost.
  void lose(const std::vector<const files::BlockingCalls*>& calls);
  /// A second signal: what is waited for now is given up. Files of that thread are not waited for
  /// again then, but what is written to the console later is.
  void give_up_now();

 private:
  struct Queue {
    files::BlockingCalls* calls;
    bool marked = false;         // our question is in it
    bool given_up = false;       // for good
    bool left_out = false;       // of this wait
    std::uint64_t returned = 0;  // when it was looked at last
  };
  bool ask_files();
  bool console_done() const { return !with_console_ || console_given_up_ || console_.idle(); }
  // Those that stand still, if there are such: what is written at the moment, say the line that
  // tells this, is not meant.
  std::string waited_for() const {
    std::vector<std::string> stuck, busy;
    for (const auto& queue : files_) {
      const auto name = queue.calls->busy_with();
      if (queue.given_up || queue.left_out || name.empty()) continue;
      (queue.calls->returned() == queue.returned ? stuck : busy).push_back(name);
    }
    if (!console_done()) stuck.emplace_back("the reader of the output");
    return fmt::format("{}", fmt::join(stuck.empty() ? busy : stuck, " and "));
  }
  bool stands_still() const {
    const auto stands = [](const Queue& queue) {
      return queue.left_out || queue.calls->returned() == queue.returned;
    };
    return (!with_console_ || console_.written() == written_) &&
           std::ranges::all_of(files_, stands);
  }
  void remember() {
    written_ = console_.written();
    for (auto& queue : files_) queue.returned = queue.calls->returned();
  }
  void look() {
    if (!waiting_) return;  // an answer of one that was given up: the loop runs for others now
    if (with_console_) console_.tell_gaps();
    const bool files = ask_files();
    // Asked once: its thread may write the last of it between two questions, and no answer would
    // come.
    const bool console = console_done();
    over_ = files && console;
    if (over_) return loop_.stop();
    if (!console) console_.when_idle([this] { look(); });
  }
  void say();
  void arm_limit();
  void give_up_if_stuck();
  void give_up() {
    for (auto& queue : files_) {
      queue.given_up = queue.given_up || !(queue.left_out || queue.calls->idle());
    }
    // A later wait() does not wait for it again.
    console_given_up_ = console_given_up_ || !console_done();
    over_ = true;
    loop_.stop();
  }

  boost::asio::io_context& loop_;
  logs::Console& console_;
  AwakeClock clock_;
  const Duration limit_;
  std::vector<Queue> files_;
  std::unique_ptr<Alarm> alarm_, limit_alarm_;
  std::optional<TimePoint> until_;  // since a signal came
  std::uint64_t written_ = 0;       // to the console, when it was looked at last
  bool with_console_ = false, waiting_ = false, over_ = false;
  bool brief_ = false;             // no words, and no longer than needs none
  bool console_given_up_ = false;  // for good
};

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

/// The directories of a run, from its first round to their end, and what is waited for before this
/// node may go: its files, its console, and workers of other nodes.
///
/// Where the log directory may be on a file system that does not answer, a thread makes the
/// directories of each start, and the loop goes on: a round is held back until its directories are
/// there, and with it what the rendezvous says after it. So the agent's policy knows of no round
/// that cannot be started, and its heartbeats go on meanwhile. A round that is over before that is
/// dropped: its end (Restart, Done, Lost) passes at once. After kTimeLimit the start fails.
class RunFiles {
 public:
  /// As long as the end of a run waits for its files, and as a server takes to come back.
  static constexpr Duration kTimeLimit = std::chrono::minutes(5);
  /// `near`: the directories are on this machine, made when they are asked for. Else opens the
  /// channel of the workers, too, where its place was found. `keeps_output`: of workers, in files.
  /// Borrows all.
  RunFiles(RunContext& run, logs::Layout& layout, workers::Channel& channel, bool near,
           bool keeps_output);
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  /// Posts what the rendezvous says, rounds once they are prepared.
  void pass(rendezvous::Push push);
  /// Those that were prepared for this round. Fails with Io, also if they were not made in time.
  Result<Folders> take(const rendezvous::Round& round) {
    if (!folders_) {
      auto made = make_folders(layout_, round.attempt, run_.spec.nproc_per_node);
      layout_.say_remark();
      return made;
    }
    auto made = std::move(*folders_);
    folders_.reset();
    return made;
  }
  /// The file system has not answered yet, or not in time: more is not to be expected of it.
  bool is_unanswered() const { return unanswered_; }
  /// Whether it was for a wait of this object, which it may end.
  bool signalled(process::Demand demand) {
    using process::Demand;
    if (last_writes_.waiting()) {
      if (demand == Demand::Stop) last_writes_.shorten();
      if (demand == Demand::KillNow) last_writes_.give_up_now();
      return true;
    }
    if (!store_drain_.waiting()) return false;
    if (demand != Demand::Nothing) store_drain_.hear_signal(demand == Demand::KillNow);
    return true;
  }
  void shorten() { last_writes_.shorten(); }
  /// Removes what is only temporary, or leaves that to the guardian, if no descriptor is free for
  /// it or its file system does not answer; but not output that -r or -t asked for, nor what
  /// explains a failure. The directory if it stays. Where the file system may not answer it waits
  /// for two seconds, and longer for output alone: people are told of a failure first.
  std::string settle(bool succeeded) {
    const auto& root = layout_.temporary_root();
    auto fate = logs::Fate::Kept;  // and named in the report
    if (!root.empty() && (succeeded || !keeps_output_)) {
      fate = settle_root(keeps_output_ || !succeeded);
    }
    if (fate != logs::Fate::Stays) run_.guardian.forget(root);
    return fate == logs::Fate::Kept ? layout_.run_directory() : std::string();
  }
  /// Waits until files and console have it, then for workers of other nodes, who may use the store
  /// of this one for so long.
  void finish(RoundStore& store, Duration store_needed);

  /// Where workers find the channel, asked once the run's directory exists; empty: none.
  std::string channel_path() {
    if (near_) channel_.look_in(layout_.run_directory());
    return channel_.path();
  }

 private:
  struct Made;
  void pass_on();
  void prepare(const rendezvous::Round& round);
  void answered(Made made);
  void go_on() {
    preparing_ = false;
    // What ended the round meanwhile has dropped it.
    prepared_ = !std::exchange(dropped_, false);
    pass_on();
  }
  void say() const {
    log::warning("files",
                 "waiting for {}: the file system does not answer. The workers start when it does; "
                 "after {} the start fails, and a signal ends the job at once",
                 what(), format_duration(kTimeLimit));
  }
  void give_up();
  std::string what() const {
    const auto& run = layout_.run_directory();
    if (run.empty()) return "the temporary directory of this run";
    return fmt::format("the directories of the workers' logs in {}", run);
  }
  logs::Fate settle_root(bool keep);

  RunContext& run_;
  files::BlockingCalls& files_;
  logs::Layout& layout_;
  workers::Channel& channel_;
  const bool near_, keeps_output_;
  LastWrites last_writes_;
  StoreDrain store_drain_;
  AwakeClock clock_;
  const std::unique_ptr<Alarm> said_, limit_;
  std::deque<rendezvous::Push> held_;
  bool preparing_ = false;
  bool dropped_ = false;                    // the round for which that is done
  bool prepared_ = false;                   // for the next one in `held_`
  std::optional<Result<Folders>> folders_;  // for the round that comes next
  bool unanswered_ = false;
  std::uint64_t asked_ = 0;  // an answer to an earlier question is ignored
};

/// Makes a call that may wait for a file system, before the loop: there SIGTERM ends the agent.
auto within_limit(const std::string& what, auto work) {
  return files::result_within(what, RunFiles::kTimeLimit, std::move(work));
}

}  // namespace elastrun::agent
