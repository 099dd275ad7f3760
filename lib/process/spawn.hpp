// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/unique_fd.hpp"
#include "process/launcher.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::process {

/// The file that execvpe(3) would start, found beforehand, so that a child has nothing left to do
/// but execve(2).
///
/// A name with a slash is taken as it is. Any other is looked up in the PATH of `environment`
/// (without one: /bin:/usr/bin), where an empty element is the current directory. Relative results
/// are relative to `directory` (empty: ours), because that is where the child will be.
/// Fails with Spawn: no such file, or only such that may not be executed.
Result<std::string> find_program(const std::string& name,
                                 const std::vector<std::string>& environment,
                                 const std::string& directory);

/// How a user's program is started while a job runs: by /bin/sh. A start holds its caller up
/// until execve(2) has returned (spawn()), and the program may lie on a file system that
/// does not answer. So a shell waits for it, which can be killed, and not the loop. What cannot be
/// started is then a shell that says so on stderr and ends with 126 or 127.

/// argv of a shell that runs `line`.
std::vector<std::string> shell_line(std::string line);
/// argv of a shell that becomes the program `words[0]` with these arguments, looked up in PATH
/// unless it has a slash, and interprets none of them. `words` is not empty.
std::vector<std::string> shell_exec(const std::vector<std::string>& words);

/// A process that has reached its program.
struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Starts a process by Boost.Process, at a cost that does not grow with our memory: the child
/// borrows our address space until execve(2), as after vfork(2).
/// Returns when the child has become its program, or with Spawn and the reason; a child that did
/// not get that far is reaped already. The owner of the result reaps the child.
Result<Spawned> spawn(boost::asio::io_context& io, const LaunchRequest& request);

/// From now on each child has these descriptors of ours, above 2, under the same numbers: what the
/// program that started this one has given it for its workers. Not while one is being started.
void let_children_inherit(std::vector<int> descriptors);

/// Fails with Io, in words for the user, where not even a job of one worker can be run: an agent
/// would fail in the middle of its start, and leave what it cannot open for its removal.
Status enough_descriptors();

/// The soft limit of open files (RLIMIT_NOFILE) is the hard one while this lives. The soft limit is
/// low (1024) for the sake of programs that use select(2); an agent needs a descriptor or more for
/// each worker, member and client of its store. Children that are not ours want theirs back.
class DescriptorLimit {
 public:
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// The soft limit that there was, for LaunchRequest::open_files; nothing if it was not changed.
  std::optional<std::uint64_t> given() const { return given_; }

 private:
  std::optional<std::uint64_t> given_;
};

/// How long a child may take, and how long once an end is wanted.
struct ChildBound {
  Duration limit;
  Duration after_signal;
};

/// Does `work` in a child, and kills that when its time is over: a process that waits for a file
/// system may be beyond all signals, and would hold up our parent. The child goes with
/// us. SIGHUP, SIGINT, SIGQUIT and SIGTERM, also of before, begin the shorter time and are taken,
/// if it is shorter. Expects these four and SIGCHLD blocked, and a single thread. False if the
/// system makes no process.
bool do_in_child(const std::function<void()>& work, ChildBound bound);

/// Writes a line to stderr, of which the reader or the file system may not answer: within a second,
/// or not at all. As do_in_child().
void say_within_bound(const std::string& line);

}  // namespace elastrun::process
