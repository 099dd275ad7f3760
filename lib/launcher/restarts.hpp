// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/round_store.hpp"
#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "rendezvous/session/session.hpp"
#include "system/machine.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// What is wrong with the GPUs of a node whose workers have gone, by what they were before the job:
/// memory that is not given back, an Xid that has come; empty: nothing. What the driver does not
/// tell is not wrong. `whole_node`: no other job can be at work on them. Pure.
std::string gpu_fault(const std::vector<system::GpuUse>& before,
                      const std::vector<system::GpuUse>& now, bool whole_node);

/// Why no small file can be written, synced and removed in that directory; empty: it can, or it is
/// not there. May wait for the file system.
std::string disk_fault(const std::string& directory);

/// Why the store of the next round cannot listen: all of its ports are in use, by whom. Empty: it
/// can, or there are so many that one will be free.
std::string port_fault(const rendezvous::StorePlan& plan);

/// Whether this machine can run workers again. For a thread: both file systems and drivers may
/// not answer.
class NodeCheck {
 public:
  /// For what may need a moment after the end of a process: memory of a GPU, ports.
  static constexpr int kLooks = 20;

  /// `directories` are written to. `workers`: of this node; where it has more GPUs, others may be
  /// at work on the rest.
  NodeCheck(std::vector<std::string> directories, std::size_t workers)
      : directories_(std::move(directories)), workers_(workers) {}
  virtual ~NodeCheck() = default;
  /// Before the workers are started for the first time.
  void begin() { before_ = sample(); }
  /// Sentence for people; empty: nothing is wrong. `needs`: as RoundStore::needs.
  std::string fault(const std::optional<rendezvous::StorePlan>& needs = {});

 private:
  // Tests have other GPUs, and more time.
  virtual std::vector<system::GpuUse> sample() { return nvml_.sample(); }
  virtual void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }
  std::string transient_fault(const std::optional<rendezvous::StorePlan>& needs) {
    const auto now = sample();
    // With a worker for each GPU the node is this job's alone, and so is all memory in use.
    auto text = gpu_fault(before_, now, now.size() <= workers_);
    return text.empty() && needs ? port_fault(*needs) : text;
  }

  const std::vector<std::string> directories_;
  const std::size_t workers_;
  system::Nvml nvml_;
  std::vector<system::GpuUse> before_;
};

/// Looks before each restart whether this node can run workers again, for at most kLimit: a check
/// that does not come to an end has nothing to say.
class RestartCheck {
 public:
  using Then = std::function<void(std::string fault)>;
  static constexpr Duration kLimit = std::chrono::seconds(5);

  /// Looks at the log directory, the temporary one and the ports of the store. Borrows both.
  RestartCheck(RunContext& run, const RoundStore& store)
      : clock_(run.clock),
        store_(store),
        check_(std::make_shared<NodeCheck>(
            std::vector<std::string>{run.spec.log_dir, temporary_places().front()},
            static_cast<std::size_t>(run.spec.nproc_per_node))),
        calls_(run.loop.get_executor(), files::BlockingCalls::WithoutThread::Refuse),
        limit_(run.clock.make_alarm()) {
    calls_.make(
        "the GPUs of this node",
        [check = check_]() -> Result<bool> { return check->begin(), true; },
        [](const Result<bool>&) {});
  }
  ~RestartCheck() { lifetime_.end(); }

  /// `then` runs once, never inside this call; empty: nothing is wrong, or it could not be asked.
  void look(Then then);

 private:
  // One that comes after its time belongs to no restart any more.
  void answer(std::string fault) {
    limit_->disarm();
    if (!fault.empty()) log::warning("restarts", "This node fails its check: {}", fault);
    if (auto then = std::exchange(then_, {})) then(std::move(fault));
  }

  Clock& clock_;
  const RoundStore& store_;
  std::shared_ptr<NodeCheck> check_;  // with a call
  files::BlockingCalls calls_;
  std::unique_ptr<Alarm> limit_;
  Then then_;
  Lifetime lifetime_;
};

/// The file of --restart-memory: what the restart policy knows of errors and bad nodes, for the
/// next start of the job. Written by the agent of group rank 0, as a whole, on a thread.
class RestartMemoryFile final : public Observes<RestartMemoryFile> {
 public:
  explicit RestartMemoryFile(RunContext& run) : run_(run) {}

  /// What an earlier start has left; null: nothing. Its restarts are not those of this start. May
  /// wait for the file system. Fails with Io for what is not a regular file.
  static Result<std::shared_ptr<const rendezvous::RestartMemory>> read(const std::string& path,
                                                                       WallTime now);

  void on(const moment::RoundReady& seen) { writes_ = seen.round.group_rank == 0; }
  void on(const moment::Restarting& seen) { write(seen.order.memory); }
  void on(const moment::RoleRestarting& seen) { write(seen.order.memory); }
  void on(const moment::Ended& seen) { write(seen.result.memory); }

 private:
  void write(const std::shared_ptr<const rendezvous::RestartMemory>& memory);

  RunContext& run_;
  bool writes_ = false;
};

}  // namespace elastrun::agent
