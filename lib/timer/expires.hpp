// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "timer/api.hpp"

#include <memory>
#include <source_location>
#include <string>

/// configure() and expires() of torch.distributed.elastic.timer, for clients of any kind. Below the
/// agent of elastrun a worker needs neither: elastrun::worker::Expires tells it by itself.
namespace elastrun::timer {

/// Whom `Expires` talks to from now on, in all threads; null: no client.
void configure(std::shared_ptr<TimerClient> client);

/// Has this process reaped, as its client does that, unless this object has ended `after` seconds
/// from now. `scope` names the timer; empty: file and line of the caller.
class Expires {
 public:
  /// `client` null: that of configure(). Throws std::runtime_error if there is none, and what the
  /// client throws.
  explicit Expires(double after, std::string scope = {}, std::shared_ptr<TimerClient> client = {},
                   const std::source_location& caller = std::source_location::current());
  /// A release that fails is logged: the block has ended well all the same.
  ~Expires();
  Expires(const Expires&) = delete;
  Expires& operator=(const Expires&) = delete;

 private:
  const std::shared_ptr<TimerClient> client_;
  const std::string scope_;
};

}  // namespace elastrun::timer
