// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "system/process_stacks.hpp"
#include "workers/message.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::agent {

/// Which processes of a group have offered their Python stacks, and how to ask for them.
class StackOffers {
 public:
  explicit StackOffers(std::size_t most = 4096) : most_(most) {}
  void heard(pid_t sender, const workers::StacksOffered& offer);
  /// None if it has not offered any, or is another process of the same number.
  std::optional<system::StackOffer> of(pid_t pid) const;
  /// All that have, the lowest pid first; they may have ended.
  std::vector<pid_t> processes() const;
  /// Another group begins.
  void forget() { offers_.clear(), refused_ = 0; }

 private:
  struct Offer {
    system::StackOffer how;
    std::uint64_t start_time;  // of the process that made it: a pid may be given away
  };
  void forget_ended();

  const std::size_t most_;
  std::size_t refused_ = 0;  // since those that have ended were looked for
  std::map<pid_t, Offer> offers_;
};

/// Takes the stacks of processes that hang, before they are ended: those of Python where the
/// process has offered them, else by py-spy(1) if that is installed, and what the kernel tells of
/// every thread. What does not answer in time is left out; the loop waits for nothing.
class HungStacks {
 public:
  using Stacks = std::map<pid_t, std::vector<std::string>>;  // lines, by pid
  using Then = std::function<void(Stacks)>;

  /// Of all processes together.
  static constexpr Duration kLimit = std::chrono::seconds(4);

  /// Borrows both.
  HungStacks(RunContext& run, const StackOffers& offers);
  ~HungStacks();
  HungStacks(const HungStacks&) = delete;
  HungStacks& operator=(const HungStacks&) = delete;

  /// `then` runs once on the loop, within kLimit, never inside this call.
  void take(const std::vector<pid_t>& hung, Then then);

 private:
  struct Job;
  struct Askable;
  void ask(const std::shared_ptr<Job>& job, std::vector<Askable> askable);
  void read_kernel(const std::shared_ptr<Job>& job, std::vector<pid_t> pids);
  void find_spy(const std::shared_ptr<Job>& job, std::vector<pid_t> pids);
  void spy(const std::shared_ptr<Job>& job, const std::string& path, pid_t pid);
  void done(const std::weak_ptr<Job>& job);
  void finish(const std::weak_ptr<Job>& job);

  RunContext& run_;
  const StackOffers& offers_;
  files::BlockingCalls calls_;
  std::list<std::shared_ptr<Job>> jobs_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
