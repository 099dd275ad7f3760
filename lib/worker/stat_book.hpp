// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fork_lock.hpp"
#include "name_pattern.hpp"
#include "stat_core.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::worker {
namespace detail {
/// Who hears of each Stat that is made, under the lock.
class StatListener {
 public:
  virtual void notice(StatCore& core) = 0;

 protected:
  ~StatListener() = default;
};

/// The Stats of this process, and who listens. The methods without a lock are for those who have
/// it.
class StatBook {
 public:
  constexpr StatBook() = default;

  std::shared_ptr<StatCore> open(const std::string& name, std::vector<Aggregation> aggregations,
                                 StatOptions options) {
    auto made = std::make_shared<StatCore>(name, std::move(aggregations), std::move(options));
    std::shared_ptr<StatCore> found;  // let go after the lock, which its end takes, too
    if (const Shared turn; turn) {
      make();
      StatCore*& place = (*cores_)[name];
      if (place != nullptr) found = place->weak_from_this().lock();
      if (found == nullptr) {
        place = made.get();
        for (StatListener* const one : *listeners_) one->notice(*made);
      }
    }
    if (found == nullptr) return made;
    if (!found->is_same(made->aggregations, made->options)) {
      throw std::invalid_argument("Stat '" + name +
                                  "': there is one of that name with other "
                                  "aggregations, window, max_samples or on_empty");
    }
    return found;
  }
  std::vector<std::shared_ptr<StatCore>> living(std::string_view pattern) {
    std::vector<std::shared_ptr<StatCore>> found;
    const Shared turn;
    if (!turn || cores_ == nullptr) return found;
    for (const auto& [name, core] : *cores_) {
      if (!fits(pattern, name)) continue;
      // None: it is about to end. The last owner of one must not be in here: its end takes the
      // lock.
      if (auto one = core->weak_from_this().lock()) found.push_back(std::move(one));
    }
    return found;
  }
  void remove(const StatCore& core) {
    const Shared turn;
    if (!turn || cores_ == nullptr) return;
    const auto found = cores_->find(core.name);
    if (found != cores_->end() && found->second == &core) cores_->erase(found);
  }
  void add(StatListener& listener) {
    const Shared turn;
    make();
    listeners_->push_back(&listener);
    for (const auto& [name, core] : *cores_) listener.notice(*core);
  }
  void remove(StatListener& listener) {
    const Shared turn;
    listeners_->erase(std::remove(listeners_->begin(), listeners_->end(), &listener),
                      listeners_->end());
  }

  StatCore* find(const std::string& name) const {
    const auto found = cores_->find(name);
    return found == cores_->end() ? nullptr : found->second;
  }

 private:
  void make() {
    if (cores_ == nullptr) cores_ = new std::map<std::string, StatCore*>;
    if (listeners_ == nullptr) listeners_ = new std::vector<StatListener*>;
  }

  // Never freed: a Stat may end after everything else.
  std::map<std::string, StatCore*>* cores_ = nullptr;
  std::vector<StatListener*>* listeners_ = nullptr;
};
inline StatBook stat_book;

inline StatCore::~StatCore() {
  stat_book.remove(*this);
  settle();
  if (open_.count() > 0) tell(turn_over());
}
}  // namespace detail

}  // namespace elastrun::worker
