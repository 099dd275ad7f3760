// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::hangs {

/// What workers have begun that may take its time: a phase other than training, one of each worker,
/// and what recorders of goodput tell to have begun, several. Each excuses its worker for a time:
/// what the script has said; else kOfLongest times the longest of that name so far, and kShortest
/// at least; kFirst for the first one. Pure; memory does not grow.
class Excuses {
 public:
  static constexpr Duration kFirst = std::chrono::minutes(30);
  static constexpr Duration kShortest = std::chrono::minutes(10);
  static constexpr int kOfLongest = 5;
  static constexpr std::size_t kMostOpen = 64;    // of one worker
  static constexpr std::size_t kMostNames = 256;  // that are learnt; further ones have kFirst

  /// `what` says what a worker does: "saving a checkpoint".
  struct Excuse {
    int rank = 0;
    std::string what;
    TimePoint since;
    Duration at_most{};
    TimePoint end() const { return since + at_most; }
    bool operator==(const Excuse&) const = default;
  };

  /// In place of the phase that this worker was in; none: it trains.
  void phase(int rank, const std::string& what, std::optional<Duration> at_most, TimePoint now);
  void train(int rank, TimePoint now);
  bool in_phase(int rank) const { return phases_.contains(rank); }
  void open(int rank, const std::string& what, TimePoint now);
  /// False: it was not open.
  bool close(int rank, const std::string& what, TimePoint now);
  /// False: nothing was open. How long it took is not known.
  bool close_all(int rank) { return open_.erase(rank) > 0; }
  /// A new group; what was learnt stays.
  void clear();

  /// Whether one of them holds.
  bool any(TimePoint now) const;
  /// When the next one of those that hold ends.
  std::optional<TimePoint> next_end(TimePoint now) const;
  /// Those that hold no more, though their workers have not said that they are over.
  std::vector<Excuse> overdue(TimePoint now) const;

 private:
  Duration learnt(const std::string& what) const;
  void learn(const Excuse& excuse, TimePoint now);
  template <class Call>
  void each(Call call) const;

  std::map<int, Excuse> phases_;  // by rank
  std::map<int, std::map<std::string, Excuse>> open_;
  std::map<std::string, Duration> longest_;  // by what it was
};

}  // namespace elastrun::hangs
