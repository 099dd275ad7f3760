// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "process/launcher.hpp"
#include "process/spawn.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::process {

/// The agent's end of forkserver.py: a process that has imported what workers import, and forks
/// them. Its children are ours, as if we had started them: this process must be a subreaper. They
/// wait, each for one order. Whatever the server or a child does, a call here ends within its time
/// limit, and then the worker is started by exec; a child that was given up never runs.
///
/// No thread, no callback: what the server says is read when something is asked of it.
class ForkServer {
 public:
  enum class State {
    Loading,
    Ready,    // also while it imports again: children that wait need no server
    Refused,  // it may not fork what it has imported
    Gone,     // it has ended or is at fault: another one may do better
  };

  /// Starts it with descriptor 0 as its socket. `io` must outlive it. Fails with Spawn or Io.
  static Result<std::unique_ptr<ForkServer>> start(boost::asio::io_context& io,
                                                   LaunchRequest request);
  /// One that is a child of ours already, at the other end of `control`, and says its number within
  /// `limit`: Ready from the start. Fails with Spawn.
  static Result<std::unique_ptr<ForkServer>> adopt(UniqueFd control, Duration limit);
  /// Kills the server and the children that wait, and reaps them.
  ~ForkServer();
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  State state();
  /// Why it is Refused or Gone; a sentence.
  const std::string& why() const { return why_; }
  /// Waits until it is not Loading any more.
  State wait_until_loaded(Duration limit);

  /// Has a child forked for that slot, a local rank, unless one waits already; does not wait for
  /// it. `with_context`: it opens the accelerator of that number. It joins the cgroup `cgroup_fd`
  /// at once, unless that is -1; one that has joined another is replaced.
  void prepare(int slot, bool with_context, int cgroup_fd);
  /// Makes the child of `request.fork_slot` its worker: in the state that spawn() would have put it
  /// in, in its session and group. Fails with Spawn, and then no such process is left; at once, if
  /// none waits and the server is importing what a worker has taught it.
  Result<Spawned> take(const LaunchRequest& request, Duration limit);

  /// The server and the children that wait: not the job's.
  std::vector<pid_t> processes();

 private:
  struct Waiting {
    UniqueFd socket;
    std::uint64_t cgroup = 0;
    pid_t pid = 0;  // 0: not born yet
    UniqueFd pidfd;
  };

  ForkServer(Spawned server, UniqueFd control)
      : server_(std::move(server)), control_(std::move(control)) {}
  void look();
  void listen();
  void hear(const std::string& said);
  void give_up(std::string why);
  Status wait_for_birth(Waiting& child, TimePoint until);
  static Status give_order(Waiting& child, const LaunchRequest& request, TimePoint until);

  Spawned server_;
  UniqueFd control_;
  State state_ = State::Loading;
  bool imports_again_ = false;
  std::string why_;
  std::map<int, Waiting> waiting_;
};

}  // namespace elastrun::process
