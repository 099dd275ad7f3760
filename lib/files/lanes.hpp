// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/blocking_calls.hpp"

#include <array>
#include <cstddef>

namespace elastrun::files {

/// The agent's work on threads, by what must not wait for what.
enum class Lane {
  Logs,         // logs of workers and agent, the journal, report.json in the log directory
  Syncs,        // fsync of the journal: may take seconds where writes go on
  Folders,      // the directories of a round, the channel's socket: a restart waits for them
  Reports,      // --report, wherever the logs are
  Errors,       // the error file that is handed on: a program that started us waits for it
  Diagnostics,  // error files of failed workers: the verdict waits for them
};
constexpr std::size_t kLanes = static_cast<std::size_t>(Lane::Diagnostics) + 1;

/// One service for calls that may wait: a queue and, from its first call on, a thread for each
/// lane. A file system that does not answer holds up its own lane only. elastrun-design(7) says how
/// many threads that makes.
class Lanes {
 public:
  explicit Lanes(const boost::asio::any_io_executor& loop)
      : all_{BlockingCalls(loop), BlockingCalls(loop), BlockingCalls(loop),
             BlockingCalls(loop), BlockingCalls(loop), BlockingCalls(loop)} {
    static_assert(kLanes == 6, "one for each");
  }
  BlockingCalls& operator[](Lane lane) { return all_[static_cast<std::size_t>(lane)]; }

 private:
  std::array<BlockingCalls, kLanes> all_;
};

}  // namespace elastrun::files
