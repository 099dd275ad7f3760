// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

namespace elastrun::telemetry {

/// An observer that a registry asks at each collection, for as long as this object lives. Its end
/// waits for a call that is under way on another thread, so that what the observer borrows may go
/// afterwards, and takes the instrument with its series away. Not to be ended inside that call;
/// must not outlive the registry.
class Observation {
 public:
  Observation() = default;
  explicit Observation(std::function<void()> end) : end_(std::move(end)) {}
  Observation(Observation&& other) noexcept : end_(std::exchange(other.end_, {})) {}
  Observation& operator=(Observation&& other) noexcept {
    std::swap(end_, other.end_);
    return *this;
  }
  ~Observation() {
    if (end_) end_();
  }
  /// From now on it is asked as long as the registry lives.
  void stay() { end_ = {}; }

 private:
  std::function<void()> end_;
};

}  // namespace elastrun::telemetry
