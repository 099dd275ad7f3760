// SPDX-License-Identifier: Apache-2.0
#include "goodput/journals/submissions.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace elastrun::goodput {
namespace {

using Group = std::vector<std::size_t>;

/// A job that is submitted again begins after its end; by how much the clocks of two machines may
/// hide that.
constexpr Duration kHidden = std::chrono::seconds(1);

class Submissions {
 public:
  explicit Submissions(const std::vector<JournalOutline>& journals)
      : journals_(journals), first_(journals.size()) {
    // Each journal is a group by itself until something unites it with another.
    std::iota(first_.begin(), first_.end(), std::size_t{0});
    for (const auto& journal : journals_) run_ids_.push_back(journal.run_id());
    for (std::size_t index = 0; index < journals_.size(); ++index) {
      // The line that says it may be torn.
      if (run_ids_[index].empty()) run_ids_[index] = run_id_beside(index);
    }
  }

  /// They had a round in common.
  void unite_by_round() {
    using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::string>;
    std::map<Key, std::vector<std::pair<std::size_t, std::int64_t>>> members;
    for (std::size_t index = 0; index < journals_.size(); ++index) {
      const auto& journal = journals_[index];
      // What several submissions have written belongs to none of them alone.
      if (!journal.is_of_one_submission()) continue;
      for (const auto& round : journal.rounds()) {
        auto& others = members[{run_ids_[index], round.epoch, round.number, round.master}];
        for (const auto& [other, rank] : others) {
          // Two with the same place in a round are of two jobs.
          if (rank == round.group_rank || !meet(index, other, {})) continue;
          unite(index, other);
          break;
        }
        others.emplace_back(index, round.group_rank);
      }
    }
  }

  /// They were in rounds one after the other, and there together. By their beginnings: one may
  /// stand between two others.
  void unite_in_turn() {
    auto groups = this->groups();
    std::erase_if(groups, [this](const Group& group) { return !has_rounds(group.front()); });
    std::ranges::sort(groups, {}, [this](const Group& group) {
      WallTime first = begin_of(group.front());
      for (const auto index : group) first = std::min(first, begin_of(index));
      return first;
    });
    for (std::size_t later = 1; later < groups.size(); ++later) {
      for (std::size_t one = 0; one < later; ++one) {
        if (!may_be_one(groups[one], groups[later])) continue;
        unite(groups[one].front(), groups[later].front());
        groups[one].insert(groups[one].end(), groups[later].begin(), groups[later].end());
        // Emptied and not erased, since both loops go by the index.
        groups[later].clear();
        break;
      }
    }
  }

  /// A spare that no round needed is of the submission that it met first.
  void unite_spares() {
    for (std::size_t spare = 0; spare < journals_.size(); ++spare) {
      if (has_rounds(spare) || !journals_[spare].is_of_one_submission()) continue;
      std::optional<std::size_t> met;
      for (std::size_t other = 0; other < journals_.size(); ++other) {
        if (!has_rounds(other) || !are_alike(spare, other) || !meet(spare, other, {})) continue;
        if (!met || begin_of(other) < begin_of(*met)) met = other;
      }
      if (met) unite(spare, *met);
    }
  }

  std::vector<Group> groups() const {
    std::map<std::size_t, Group> groups;
    for (std::size_t index = 0; index < journals_.size(); ++index) {
      groups[root(index)].push_back(index);
    }
    std::vector<Group> found;
    for (auto& [low, group] : groups) found.push_back(std::move(group));
    return found;
  }

 private:
  /// That of another agent in a round of this one.
  std::string run_id_beside(std::size_t index) const {
    for (std::size_t other = 0; other < journals_.size(); ++other) {
      const auto is_common = [&](const JournalOutline::Round& round) {
        return std::ranges::any_of(journals_[index].rounds(), [&](const auto& own) {
          return own.is(round) && own.group_rank != round.group_rank;
        });
      };
      if (meet(index, other, {}) && std::ranges::any_of(journals_[other].rounds(), is_common)) {
        return journals_[other].run_id();
      }
    }
    return {};
  }
  WallTime begin_of(std::size_t index) const {
    return journals_[index].common(journals_[index].begin());
  }
  WallTime end_of(std::size_t index) const {
    return journals_[index].common(journals_[index].end());
  }
  bool meet(std::size_t one, std::size_t other, Duration at_least) const {
    return begin_of(one) + at_least < end_of(other) && begin_of(other) + at_least < end_of(one);
  }
  bool has_rounds(std::size_t index) const { return !journals_[index].rounds().empty(); }
  bool are_alike(std::size_t one, std::size_t other) const {
    return run_ids_[one] == run_ids_[other] && journals_[one].is_of_one_submission() &&
           journals_[other].is_of_one_submission();
  }

  bool may_be_one(const Group& one, const Group& other) const {
    if (one.empty() || other.empty() || !are_alike(one.front(), other.front())) return false;
    const auto met = [&](auto index) {
      return std::ranges::any_of(other, [&](auto its) { return meet(index, its, kHidden); });
    };
    return std::ranges::any_of(one, met) && !contradict(one, other) &&
           !is_over_before(one, other) && !is_over_before(other, one);
  }

  /// Whether the job of the one had ended when there was a round of the other.
  bool is_over_before(const Group& one, const Group& other) const {
    WallTime first = WallTime::max();
    for (const auto index : other) {
      for (const auto& round : journals_[index].rounds()) {
        first = std::min(first, journals_[index].common(round.at));
      }
    }
    return std::ranges::any_of(one, [&](auto index) {
      const auto& journal = journals_[index];
      return journal.has_ended() && !journal.has_left() && end_of(index) <= first;
    });
  }

  /// A round of the same number is another one, or two have the same place in it.
  bool contradict(const Group& one, const Group& other) const {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<const JournalOutline::Round*>>
        known;
    for (const auto index : one) {
      for (const auto& round : journals_[index].rounds()) {
        known[{round.epoch, round.number}].push_back(&round);
      }
    }
    const auto denied = [&known](const JournalOutline::Round& round) {
      const auto found = known.find({round.epoch, round.number});
      return found != known.end() && std::ranges::any_of(found->second, [&](const auto* its) {
               return its->master != round.master || its->group_rank == round.group_rank;
             });
    };
    return std::ranges::any_of(
        other, [&](auto index) { return std::ranges::any_of(journals_[index].rounds(), denied); });
  }

  std::size_t root(std::size_t index) const {
    // It ends, because unite() lets each one point to a lower index.
    while (first_[index] != index) index = first_[index];
    return index;
  }
  void unite(std::size_t one, std::size_t other) {
    const auto a = root(one), b = root(other);
    first_[std::max(a, b)] = std::min(a, b);
  }

  const std::vector<JournalOutline>& journals_;
  std::vector<std::size_t> first_;  // of its group, or one on the way there
  std::vector<std::string> run_ids_;
};

}  // namespace

std::vector<Group> submissions_of(const std::vector<JournalOutline>& journals) {
  Submissions submissions(journals);
  submissions.unite_by_round();
  submissions.unite_in_turn();
  submissions.unite_spares();
  return submissions.groups();
}

}  // namespace elastrun::goodput
