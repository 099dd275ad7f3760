// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent_channel.hpp"
#include "packet.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace elastrun::worker {
/// This process is ended by `signal` (0: the agent only tells), with its stack in the agent's
/// report, unless this object has ended `after` seconds from now:
///
///     elastrun::worker::Expires timer(60);
///     all_reduce(gradients);
///
/// `scope` names it there; empty: file and line. Timers inside each other are separate; only a
/// function that calls itself arms the timer of its scope again, with the whole time once the
/// inner call has returned. To be ended by the thread that has made it, the newest first.
class Expires {
 public:
  explicit Expires(double after, std::string_view scope = {}, int signal = SIGKILL,
                   const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : after_(after),
        signal_(signal),
        scope_(scope.empty() ? std::string(file) + '#' + std::to_string(line) : scope),
        number_(numbers().fetch_add(1, std::memory_order_relaxed)),
        around_(std::exchange(innermost(), this)) {
    if (scope_.size() > kLongest) {
      auto first = scope_.size() - kLongest;  // of a character, not in the middle of one
      while (first < scope_.size() && (static_cast<unsigned char>(scope_[first]) & 0xc0) == 0x80) {
        ++first;
      }
      scope_.erase(0, first);
    }
    for (outer_ = around_; outer_ != nullptr && outer_->scope_ != scope_;) outer_ = outer_->around_;
    arm();
    if (outer_ != nullptr) outer_->disarm();
  }
  ~Expires() {
    innermost() = around_;
    if (outer_ != nullptr) outer_->arm();
    disarm();
  }
  Expires(const Expires&) = delete;
  Expires& operator=(const Expires&) = delete;

 private:
  static constexpr std::size_t kLongest = 256;  // bytes of a scope: its end tells more of a path

  static std::atomic<std::uint64_t>& numbers() {
    static std::atomic<std::uint64_t> next{1};
    return next;
  }
  static Expires*& innermost() {
    thread_local Expires* innermost = nullptr;
    return innermost;
  }
  std::string begin() const {
    return R"({"kind":"timer","id":)" + std::to_string(number_) + R"(,"scope":)" +
           worker::quoted(scope_);
  }
  /// By the monotonic clock: a wall clock that is set neither ends nor spares anybody.
  void arm() const {
    tell([&] {
      const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
      return begin() + R"(,"deadline":)" + number(now.count() + after_) + R"(,"after":)" +
             number(after_) + R"(,"signal":)" + std::to_string(signal_) + '}';
    });
  }
  /// One that is lost would cost the life of a process that is well.
  void disarm() const {
    if (Channel::instance().configured()) Channel::instance().send_surely(begin() + '}');
  }

  double after_;
  int signal_;
  std::string scope_;
  std::uint64_t number_;
  Expires *around_, *outer_ = nullptr;  // the timer around this one; that of the same scope
};

}  // namespace elastrun::worker
