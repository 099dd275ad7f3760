// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/hang/hang_watch.hpp"
#include "agent/hang/hung_stacks.hpp"
#include "agent/loop/observer.hpp"
#include "agent/loop/run_context.hpp"
#include "agent/round/worker_channel.hpp"
#include "rendezvous/session/session.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// The stacks of this node's workers, for the job when it hangs and for clients that ask: takes
/// them when the rendezvous wants them, and brings those of the whole job to processes of
/// elastrunctl(1) on this machine.
class StackCollector final : public Observer {
 public:
  StackCollector(RunContext& run, rendezvous::Session& session, const StackOffers& offers,
                 WorkerChannel& channel, HangWatch& watch);

  /// See HangServices::took().
  bool took(const rendezvous::Push& push);
  /// A process that is below no worker wants to know where the workers of the job stand.
  void asked();

  void heard(const Moment& one) override { dispatch(one, *this); }
  using Observer::on;
  void on(const moment::Started& seen);
  void on(const moment::Stopped&) { workers_.clear(); }

 private:
  struct Subject {
    int rank = 0;
    pid_t worker = 0, process = 0;  // the process of that worker that knows most
  };
  struct Taking {
    std::int64_t id = 0;
    std::vector<Subject> subjects;
    std::optional<HungStacks::Stacks> stacks{};
    std::optional<std::vector<std::string>> dumps{};
    bool is_told = false;
  };
  std::vector<Subject> subjects() const;
  static std::vector<std::string> dumps_of(const std::vector<Subject>& subjects,
                                           const std::vector<std::string>& environment,
                                           WallTime since);
  void take(const rendezvous::TakeStacks& order);
  void await_dumps(std::shared_ptr<Taking> taking);
  void report(Taking& taking);
  void reported(const rendezvous::StacksReport& report);

  RunContext& run_;
  rendezvous::Session& session_;
  const StackOffers& offers_;
  WorkerChannel& channel_;
  HangWatch& watch_;
  std::unique_ptr<HungStacks> hung_stacks_;  // made when it is first needed
  files::BlockingCalls calls_;
  std::unique_ptr<Alarm> dumps_limit_;  // made when it is first needed
  std::vector<Subject> workers_;
  WallTime began_;                     // the group
  std::optional<TimePoint> asked_at_;  // and not answered yet
};

}  // namespace elastrun::agent
