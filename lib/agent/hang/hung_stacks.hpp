// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "core/unique_fd.hpp"
#include "files/blocking_calls.hpp"
#include "process/launcher.hpp"
#include "system/python_stacks.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Takes the stacks of processes that hang, before they are ended: those of Python where the
/// process has offered them, else by py-spy(1) if that is installed, and what the kernel tells of
/// every thread. What does not answer in time is left out; the loop waits for nothing.
class HungStacks {
 public:
  struct Hung {
    pid_t pid = 0;
    UniqueFd pidfd;
    std::optional<system::StackOffer> offer;
  };
  using Stacks = std::map<pid_t, std::vector<std::string>>;  // lines, by pid
  using Then = std::function<void(Stacks)>;

  /// Of all processes together.
  static constexpr Duration kLimit = std::chrono::seconds(4);

  /// Borrows all; `environment`, "NAME=VALUE": with the PATH in which py-spy is looked for.
  HungStacks(boost::asio::io_context& loop, Clock& clock, process::Launcher& launcher,
             std::vector<std::string> environment);
  ~HungStacks();
  HungStacks(const HungStacks&) = delete;
  HungStacks& operator=(const HungStacks&) = delete;

  /// `then` runs once on the loop, within kLimit, never inside this call.
  void take(std::vector<Hung> hung, Then then);

 private:
  struct Job;
  void ask(const std::shared_ptr<Job>& job, std::vector<Hung> hung);
  void read_kernel(const std::shared_ptr<Job>& job, std::vector<pid_t> pids);
  void find_spy(const std::shared_ptr<Job>& job, std::vector<pid_t> pids);
  void spy(const std::shared_ptr<Job>& job, const std::string& path, pid_t pid);
  void done(const std::weak_ptr<Job>& job);
  void finish(const std::weak_ptr<Job>& job);

  boost::asio::io_context& loop_;
  Clock& clock_;
  process::Launcher& launcher_;
  const std::vector<std::string> environment_;
  files::BlockingCalls calls_;
  std::list<std::shared_ptr<Job>> jobs_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
