// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

namespace elastrun::rendezvous {

/// The restarts of the whole job: one count for all nodes. Changes of membership cost nothing.
class Budget {
 public:
  explicit Budget(int max_restarts) : max_(max_restarts) {}
  /// Takes one restart if there is one left.
  bool spend() {
    if (spent_ >= max_) return false;
    ++spent_;
    return true;
  }
  /// What a node remembers of the time before this coordinator.
  void learn(int spent) { spent_ = std::max(spent_, spent); }
  int spent() const { return spent_; }
  int left() const { return std::max(max_ - spent_, 0); }

 private:
  int max_;
  int spent_ = 0;
};

}  // namespace elastrun::rendezvous
