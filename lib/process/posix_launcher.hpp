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

class PosixChild;
struct Family;  // the children of one launcher

/// The launcher that starts real processes. It sets SIGCHLD to its default action, because an
/// inherited "ignore" would make the kernel reap the children before we have seen how they ended.
class PosixLauncher final : public Launcher {
 public:
  /// `io` and `clock` must outlive the launcher and its children; the children may outlive it.
  PosixLauncher(boost::asio::io_context& io, Clock& clock);
  Result<std::unique_ptr<Child>> start(const LaunchRequest& request,
                                       std::function<void(const Exit&)> on_exit) override;
  /// The children whose Child still exists, also those that have ended: what a sweep must leave.
  std::vector<pid_t> children() const;
  /// True if one of them has not been seen to end.
  bool any_running() const;
  bool owns(pid_t pid) const;
  /// Asked first for a request with a `fork_slot`; where it has nothing to say, exec makes one.
  using Serve = std::function<std::optional<Result<Spawned>>(const LaunchRequest&)>;
  void serve_by(Serve serve) { serve_ = std::move(serve); }

 private:
  Result<Spawned> begin(const LaunchRequest& request);
  void guard_soon(PosixChild& child);

  boost::asio::io_context& io_;
  Clock& clock_;
  Serve serve_;
  std::shared_ptr<Family> family_;
};

}  // namespace elastrun::process
