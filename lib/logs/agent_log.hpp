// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/blocking_calls.hpp"

#include <memory>
#include <string>

namespace elastrun::logs {

/// The launcher's log in the directory of the run, `agent.log`: while this lives, all lines from
/// level info on. At 10 MiB it becomes agent.1.log, that agent.2.log, and an older one goes.
///
/// The thread for files writes it. While the file system does not answer, up to 1,000 lines wait;
/// what comes then is counted, and the count is written. A file that cannot be written costs itself
/// and one warning.
class AgentLog {
 public:
  /// Borrows `calls`.
  AgentLog(files::BlockingCalls& calls, const std::string& path);
  ~AgentLog();
  AgentLog(const AgentLog&) = delete;
  AgentLog& operator=(const AgentLog&) = delete;

  static constexpr int kMostWaiting = 1000;
  static constexpr std::size_t kSize = 10 << 20;
  static constexpr std::size_t kOlderFiles = 2;

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
};

}  // namespace elastrun::logs
