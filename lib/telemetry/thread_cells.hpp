// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

/// Cells: where a thread's values are added up. Each thread has its own cell in each series it adds
/// to, so adding is a few plain loads and stores: no lock, no atomic read-modify-write, no clock,
/// no allocation after the first time. Cells only grow; who collects takes differences, so any
/// number may collect. The cell of a thread that has ended goes, with what is in it, to the next
/// one: there are as many as threads at one time.
namespace elastrun::telemetry {

/// Hands cells of a series to threads, and takes them back when they end.
class CellOwner : public std::enable_shared_from_this<CellOwner> {
 public:
  virtual ~CellOwner() = default;
  virtual void* claim() = 0;
  virtual void give_back(void* cell) = 0;
};

/// The cells of this thread by the number of their series.
struct ThreadCells {
  void** cells = nullptr;
  std::uint32_t size = 0;
};
inline constinit thread_local ThreadCells thread_cells{};

/// A number for a series, never used again.
std::uint32_t next_cell_number();
/// The slow path of Cells::mine.
void* claim_cell(std::uint32_t number, CellOwner& owner);

/// All cells of a series. Lives in a shared_ptr: threads hold on to it.
template <class Cell>
class Cells final : public CellOwner {
 public:
  /// That of the calling thread.
  Cell& mine() {
    const ThreadCells& known = thread_cells;
    if (number_ < known.size) [[likely]] {
      if (void* const cell = known.cells[number_]) [[likely]]
        return *static_cast<Cell*>(cell);
    }
    return *static_cast<Cell*>(claim_cell(number_, *this));
  }
  /// Calls `visit` with each cell there is, and its place.
  void each(auto&& visit) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < cells_.size(); ++i) visit(*cells_[i], i);
  }
  /// From now on for cells made later, too.
  void on_new(std::function<void(Cell&)> prepare) {
    const std::lock_guard lock(mutex_);
    for (const auto& cell : cells_) prepare(*cell);
    prepare_ = std::move(prepare);
  }
  void* claim() override {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Cell* const cell = free_.back();
      free_.pop_back();
      return cell;
    }
    cells_.push_back(std::make_unique<Cell>());
    if (prepare_) prepare_(*cells_.back());
    return cells_.back().get();
  }
  void give_back(void* cell) override {
    const std::lock_guard lock(mutex_);
    free_.push_back(static_cast<Cell*>(cell));
  }

 private:
  const std::uint32_t number_ = next_cell_number();
  std::mutex mutex_;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::vector<Cell*> free_;
  std::function<void(Cell&)> prepare_;
};

}  // namespace elastrun::telemetry
