// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput/ledger/monitor.hpp"

#include <algorithm>
#include <optional>

namespace elastrun::goodput {

/// When the goodput of a window is too low, with hysteresis: it has recovered only once it is
/// kRecovery above the limit, so that one that hovers about it is told of once. Pure.
class GoodputAlert {
 public:
  static constexpr double kRecovery = 0.02;
  /// `below`: a share, above 0 and at most 1.
  explicit GoodputAlert(double below) : below_(below) {}

  enum class Change { Fell, Recovered };
  /// Nothing before the window is full. Time that is not explained counts against goodput; a job
  /// without steps has fallen if it cannot be above the limit, and never recovers.
  std::optional<Change> take(const WindowView& view) {
    if (!view.is_full()) return std::nullopt;
    const auto share = view.share();
    const bool change = is_raised_ ? share.is_bounded() && share.least() >= recovers_at()
                                   : share.headline() < below_;
    if (!change) return std::nullopt;
    is_raised_ = !is_raised_;
    return is_raised_ ? Change::Fell : Change::Recovered;
  }
  bool is_raised() const { return is_raised_; }
  double below() const { return below_; }
  double recovers_at() const { return std::min(below_ + kRecovery, 1.0); }

 private:
  const double below_;
  bool is_raised_ = false;
};

}  // namespace elastrun::goodput
