// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "process/launcher.hpp"

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace elastrun::test {

/// Starts children that exist only in a test, which ends them by hand.
class FakeLauncher final : public process::Launcher {
 public:
  struct Record {
    process::LaunchRequest request;
    std::vector<int> signals;  // to the group, but SIGCONT
    bool ended = false;
    bool leaves_child = false;  // in its group, when it ends
    bool child_deaf = false;    // that one ends by SIGKILL only
    bool destroyed = false;
    bool foreign = false;  // another user's: no signal reaches it
    bool deaf = false;     // ends by SIGKILL only, as the test sees fit
    std::function<void(const process::Exit&)> on_exit;
  };

  explicit FakeLauncher(Clock& clock) : clock_(clock) {}

  Result<std::unique_ptr<process::Child>> start(
      const process::LaunchRequest& request,
      std::function<void(const process::Exit&)> on_exit) override {
    if (fails_at && static_cast<std::size_t>(*fails_at) == records_.size()) {
      return fail(Code::Spawn, "too many open files");
    }
    auto record = std::make_shared<Record>();
    record->request = request;
    record->on_exit = std::move(on_exit);
    records_.push_back(record);
    return std::make_unique<FakeChild>(record, 1000 + static_cast<pid_t>(records_.size()) - 1);
  }

  Record& operator[](std::size_t index) { return *records_[index]; }
  std::size_t size() const { return records_.size(); }
  int alive() const {
    return static_cast<int>(
        std::ranges::count_if(records_, [](const auto& r) { return !r->ended && !r->destroyed; }));
  }

  /// The child ends, and its group is told so.
  void end(std::size_t index, process::ExitStatus status) {
    auto& record = *records_[index];
    if (std::exchange(record.ended, true) || record.destroyed) return;
    record.on_exit({status, clock_.now(), clock_.wall(), 1 << 20});
  }
  /// All that got a signal end by it, as programs without handlers do.
  void obey() {
    for (std::size_t i = 0; i < records_.size(); ++i) {
      auto& record = *records_[i];
      if (record.ended || record.destroyed || record.signals.empty()) continue;
      const int last = record.signals.back();
      if (!record.deaf || last == SIGKILL) end(i, process::ExitStatus::signaled(last));
    }
  }

  std::optional<int> fails_at;  // number of the start that fails

 private:
  class FakeChild final : public process::Child {
   public:
    FakeChild(std::shared_ptr<Record> record, pid_t pid) : record_(std::move(record)), pid_(pid) {}
    ~FakeChild() override { record_->destroyed = true; }
    pid_t pid() const override { return pid_; }
    bool ended() const override { return record_->ended; }
    bool signal_group(int signal) noexcept override {
      if (record_->foreign) return false;
      if (signal == SIGCONT) return true;
      record_->signals.push_back(signal);
      if (!record_->child_deaf || signal == SIGKILL) record_->leaves_child = false;
      return true;
    }
    bool group_alive() const override { return !record_->ended || record_->leaves_child; }

   private:
    std::shared_ptr<Record> record_;
    pid_t pid_;
  };

  Clock& clock_;
  std::vector<std::shared_ptr<Record>> records_;
};

}  // namespace elastrun::test
