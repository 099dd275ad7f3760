// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "system/python_stacks.hpp"
#include "workers/message.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
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

}  // namespace elastrun::agent
