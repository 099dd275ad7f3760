// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <expected>
#include <utility>

namespace elastrun::agent {

/// Why a job could not begin. The exit code follows from `reason`: torchrun
/// ends with 1 whatever cannot be started, but what only turns out to be wrong with the value of an
/// option that it lacks may be told from that.
struct StartFailure {
  enum class Reason { Conditions, WrongOption };

  StartFailure(Error why, Reason what = Reason::Conditions) : error(std::move(why)), reason(what) {}
  bool operator==(const StartFailure&) const = default;

  Error error;
  Reason reason;
};

template <class T>
using Started = std::expected<T, StartFailure>;

}  // namespace elastrun::agent
