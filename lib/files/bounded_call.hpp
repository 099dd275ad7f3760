// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace elastrun::files {

/// Before there is a loop: makes a call that may wait for a file system on a thread, and waits for
/// it at most `limit`; after two seconds people are told so. Fails with Io after that; the thread
/// is left to itself then, so `call` must own all that it uses. `what` for people: "the log
/// directory /path". Where the system refuses a thread, the call is made here.
Status wait_for(const std::string& what, Duration limit, std::function<void()> call);

/// wait_for() for a call that returns something: that as a Result, which it may be itself.
template <class Work>
auto result_within(const std::string& what, Duration limit, Work work) {
  using Returned = decltype(work());
  constexpr bool kMayFail = requires(Returned one) {
    one.error();
  };
  using Answer = typename std::conditional_t<kMayFail, std::type_identity<Returned>,
                                             std::type_identity<Result<Returned>>>::type;
  auto returned = std::make_shared<std::unique_ptr<Returned>>();
  const auto call = [returned, work = std::make_shared<Work>(std::move(work))] {
    *returned = std::make_unique<Returned>((*work)());
  };
  if (auto waited = wait_for(what, limit, call); !waited)
    return Answer(std::unexpected(waited.error()));
  return Answer(std::move(**returned));
}

}  // namespace elastrun::files
