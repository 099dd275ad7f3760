// SPDX-License-Identifier: Apache-2.0
#include "timer/expires.hpp"

#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <exception>
#include <fmt/format.h>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace elastrun::timer {
namespace {

struct Configured {
  std::mutex change;
  std::shared_ptr<TimerClient> client;
};

/// Never destroyed: a thread may still be in a block when the process ends.
Configured& configured() {
  static auto* one = new Configured;
  return *one;
}

std::shared_ptr<TimerClient> chosen(std::shared_ptr<TimerClient> client) {
  if (client) return client;
  auto& configuration = configured();
  const std::lock_guard lock(configuration.change);
  if (configuration.client) return configuration.client;
  throw std::runtime_error("no timer client: call elastrun::timer::configure() first, or name one");
}

}  // namespace

void configure(std::shared_ptr<TimerClient> client) {
  auto& configuration = configured();
  const std::lock_guard lock(configuration.change);
  std::swap(configuration.client, client);  // the old one ends outside the lock, in `client`
}

Expires::Expires(double after, std::string scope, std::shared_ptr<TimerClient> client,
                 const std::source_location& caller)
    : client_(chosen(std::move(client))),
      scope_(scope.empty() ? fmt::format("{}#{}", caller.file_name(), caller.line())
                           : std::move(scope)) {
  // The wall clock, as the interface has it: servers are other processes.
  const WallTime now = std::chrono::system_clock::now();
  client_->acquire(scope_, to_seconds(now) + after);
}

Expires::~Expires() {
  try {
    client_->release(scope_);
  } catch (const std::exception& failure) {
    log::warning("timer", "The timer '{}' was not released: {}", scope_, failure.what());
  } catch (...) {
    log::warning("timer", "The timer '{}' was not released", scope_);
  }
}

}  // namespace elastrun::timer
