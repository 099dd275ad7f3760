// SPDX-License-Identifier: Apache-2.0
#include "telemetry/thread_cells.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace elastrun::telemetry {
namespace {

constinit thread_local bool thread_ends = false;

/// What the calling thread has claimed; given back when it ends.
class Claims {
 public:
  ~Claims() {
    // Before the cells go back: destructors of other thread_local objects may run after this one,
    // and add.
    thread_ends = true;
    // Or they would add by the table, to cells that have another owner by then.
    thread_cells = {};
    for (const auto& [owner, cell] : claims_) owner->give_back(cell);
  }
  void* add(std::uint32_t number, CellOwner& owner) {
    if (number >= table_.size()) {
      table_.resize(std::max<std::size_t>(number + 1, 2 * table_.size()));
      thread_cells = {table_.data(), static_cast<std::uint32_t>(table_.size())};
    }
    void* const cell = owner.claim();
    // Shared: an instrument may be destroyed before a thread that has added to it ends.
    claims_.emplace_back(owner.shared_from_this(), cell);
    return table_[number] = cell;
  }

 private:
  std::vector<void*> table_;
  std::vector<std::pair<std::shared_ptr<CellOwner>, void*>> claims_;
};

}  // namespace

std::uint32_t next_cell_number() {
  static std::atomic<std::uint32_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void* claim_cell(std::uint32_t number, CellOwner& owner) {
  // Who adds in the last moments of a thread, in destructors, has a new cell each time.
  if (thread_ends) return owner.claim();
  thread_local Claims claims;
  return claims.add(number, owner);
}

}  // namespace elastrun::telemetry
