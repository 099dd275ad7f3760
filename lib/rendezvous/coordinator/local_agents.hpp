// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/membership/member_fence.hpp"
#include "rendezvous/membership/roster.hpp"
#include "rendezvous/wire/agent_processes.hpp"

#include <boost/asio/ip/address.hpp>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

namespace elastrun::rendezvous {

/// Agents on the machine of their coordinator. A connection that has ended says little: a proxy may
/// have done it, and the agent be back in a moment. But here it can be seen whether its processes
/// have ended (kill -9 of all of them, their cgroup's end): then the job need not wait for it.
class LocalAgents {
 public:
  /// `gone` runs on the loop, once for each peer that is found so.
  LocalAgents(Clock& clock, std::function<void(Peer)> gone)
      : clock_(clock), gone_(std::move(gone)), look_(clock.make_alarm()) {}

  /// It has said which its processes are. Of other machines nothing is kept.
  void note(Peer peer, const AgentProcesses& processes);
  /// Whether it is one of these, and nothing between it and us can be cut: it comes `from` an
  /// address of this machine itself.
  bool is_here(Peer peer, const boost::asio::ip::address& from) const;
  /// Its connection has ended; `without_word`: it has not said that it would. Then its processes
  /// are looked at for kTimeToReturn.
  void lose(Peer peer, bool without_word);

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(2);

  struct Lost {
    AgentProcesses processes;
    TimePoint until;
  };
  void look();

  Clock& clock_;
  const std::function<void(Peer)> gone_;
  const std::unique_ptr<Alarm> look_;
  std::unordered_map<Peer, AgentProcesses> here_;
  std::unordered_map<Peer, Lost> lost_;
};

}  // namespace elastrun::rendezvous
