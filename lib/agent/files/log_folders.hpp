// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/files/last_writes.hpp"
#include "agent/round/placement.hpp"
#include "core/awake_clock.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "files/blocking_calls.hpp"
#include "logs/layout.hpp"
#include "rendezvous/membership/round.hpp"
#include "workers/channel.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace elastrun::agent {

/// The directories of each start of the workers. Where the log directory may be on a file system
/// that does not answer, a thread of their own makes them, and the loop goes on; after kTimeLimit
/// the start fails.
class LogFolders {
 public:
  /// As long as the end of a run waits for its files, and as a server takes to come back.
  static constexpr Duration kTimeLimit = std::chrono::minutes(5);
  using MaybePlace = Result<std::unique_ptr<workers::ChannelPlace>>;
  /// `workers`: of this node. `near`: the directories are on this machine, made when they are asked
  /// for. Else `channel_found` hears on the loop where the channel of the workers can be, and if
  /// that is gone at a later start, where the next one can.
  LogFolders(files::BlockingCalls& files, Clock& clock, logs::Layout& layout, int workers,
             bool near, std::function<void(MaybePlace)> channel_found);
  LogFolders(const LogFolders&) = delete;
  LogFolders& operator=(const LogFolders&) = delete;

  /// Calls `done` on the loop, inside or later, but not later than kTimeLimit.
  void prepare(const rendezvous::Round& round, std::function<void()> done);
  /// Those that were prepared for this round. Fails with Io, also if they were not made in time.
  Result<Folders> take(const rendezvous::Round& round);
  /// The end of what was only temporary, as logs::settle(). Where the file system may not answer,
  /// waits for what is written there if the user wants it (`waits`), else for two seconds.
  logs::Fate settle(LastWrites& writes, bool waits, bool keep);
  /// The file system has not answered yet, or not in time: more is not to be expected of it.
  bool is_unanswered() const { return unanswered_; }

 private:
  struct Made;
  void answered(Made made);
  void say() const;
  void give_up();
  std::string what() const;

  files::BlockingCalls& files_;
  logs::Layout& layout_;
  const int workers_;
  const bool near_;
  const std::function<void(MaybePlace)> channel_found_;
  AwakeClock clock_;
  const std::unique_ptr<Alarm> said_, limit_;
  std::function<void()> done_;
  std::optional<Result<Folders>> folders_;  // for the round that comes next
  bool unanswered_ = false, channel_tried_ = false;
  std::string channel_;      // its name, once it was found
  std::uint64_t asked_ = 0;  // an answer to an earlier question is ignored
};

}  // namespace elastrun::agent
