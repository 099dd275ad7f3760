// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/unique_fd.hpp"

#include <cstdint>

namespace elastrun::workers {

/// A TCP port kept for a worker that will listen on it itself: bound with SO_REUSEADDR, not
/// listening. The kernel never hands out such a port as a free one, yet the worker's own
/// server, which sets SO_REUSEADDR too, may bind and listen (socket(7)). So there is no race
/// between announcing the port and using it.
class HeldPort {
 public:
  /// Any free port of this machine. Fails with Store when none is left.
  static Result<HeldPort> any();
  std::uint16_t number() const { return number_; }

 private:
  UniqueFd fd_;
  std::uint16_t number_ = 0;
};

}  // namespace elastrun::workers
