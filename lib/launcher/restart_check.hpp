// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "launcher/node_check.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Looks before each restart whether this node can run workers again, for at most kLimit: a check
/// that does not come to an end has nothing to say.
class RestartCheck {
 public:
  using Then = std::function<void(std::string fault)>;
  using Needs = std::function<std::optional<rendezvous::StorePlan>()>;
  static constexpr Duration kLimit = std::chrono::seconds(5);

  RestartCheck(const boost::asio::any_io_executor& loop, Clock& clock,
               std::vector<std::string> directories, std::size_t workers, Needs needs);
  ~RestartCheck() { lifetime_.end(); }

  /// `then` runs once, never inside this call; empty: nothing is wrong, or it could not be asked.
  void look(Then then);

 private:
  void answer(std::string fault);

  Clock& clock_;
  const Needs needs_;
  std::shared_ptr<NodeCheck> check_;  // with a call
  files::BlockingCalls calls_;
  std::unique_ptr<Alarm> limit_;
  Then then_;
  Lifetime lifetime_;
};

}  // namespace elastrun::agent
