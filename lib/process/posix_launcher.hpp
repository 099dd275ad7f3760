// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/launcher.hpp"
#include "process/spawn.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace elastrun::process {

/// The launcher that starts real processes. It sets SIGCHLD to its default action, because an
/// inherited "ignore" would make the kernel reap the children before we have seen how they ended.
class PosixLauncher : public Launcher {
 public:
  /// The children whose Child still exists, also those that have ended: what a sweep must leave.
  virtual std::vector<pid_t> children() const = 0;
  /// True if one of them has not been seen to end.
  virtual bool any_running() const = 0;
  virtual bool owns(pid_t pid) const = 0;
  /// Asked first for a request with a `fork_slot`; where it has nothing to say, exec makes one.
  using Serve = std::function<std::optional<Result<Spawned>>(const LaunchRequest&)>;
  virtual void serve_by(Serve serve) = 0;
};

/// `io` and `clock` must outlive the launcher and its children; the children may outlive it.
std::unique_ptr<PosixLauncher> make_posix_launcher(boost::asio::io_context& io, Clock& clock);

}  // namespace elastrun::process
