// SPDX-License-Identifier: Apache-2.0

#include "timer/torch_request.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

namespace elastrun::timer {
namespace {

DebugInfoHook& hook_of_process() {
  static DebugInfoHook hook;
  return hook;
}

}  // namespace

void set_debug_info_hook(DebugInfoHook hook) {
  hook_of_process() = std::move(hook);
}

void log_debug_info_for_expired_timers(const std::string& run_id, const ExpiredTexts& timers) {
  if (timers.empty()) return;
  if (hook_of_process()) return hook_of_process()(run_id, timers);
  if (!log::is_on(log::Level::Info)) return;
  std::vector<std::string> texts;
  for (const auto& [pid, requests] : timers) {
    texts.push_back(fmt::format("{}: ['{}']", pid, join(requests, "', '")));
  }
  log::info("timer", "Timers expired for run:[{}] [{{{}}}].", run_id, join(texts, ", "));
}

namespace {

constexpr std::size_t kShown = 120;              // of a line that means nothing
constexpr double kLongest = 10 * 365.0 * 86400;  // years; a deadline must fit into nanoseconds
constexpr std::string_view kBegin = "{\"version\"";

std::unexpected<Error> refuse(std::string_view why) {
  return fail(Code::Protocol, fmt::format("a timer request {}", why));
}

std::optional<std::int64_t> whole(const json::value& object, std::string_view name) {
  const auto* value = find_member(object, name);
  return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
}

std::optional<double> seconds(const json::value& object, std::string_view name) {
  const auto* value = find_member(object, name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const double number = value->to_number<double>();
  // A NaN compares false with everything: the deadline would neither expire nor be in order.
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

Result<Request> request_of(const json::value& object, TimePoint now, WallTime wall) {
  Request request;
  const auto pid = whole(object, "pid");
  if (!pid || *pid < 1 || *pid > std::numeric_limits<std::int32_t>::max()) {
    return refuse("needs a `pid`, a whole number above 0");
  }
  const auto* scope = find_member(object, "scope_id");
  if (scope == nullptr || !scope->is_string()) return refuse("needs a text `scope_id`");
  const auto expiration = seconds(object, "expiration_time");
  if (!expiration) return refuse("needs a number `expiration_time`");
  const auto signal = whole(object, "signal");
  if (!signal || *signal > SIGRTMAX) return refuse("needs a `signal`, 0 or less for none");
  request.worker = *pid;
  request.scope = std::string(std::string_view(scope->get_string()));
  request.signal = static_cast<int>(std::max<std::int64_t>(*signal, 0));
  request.armed = now;
  if (*expiration < 0) return request;
  const double left = std::clamp(*expiration - to_seconds(wall), -kLongest, kLongest);
  // The client counts by the wall clock; setting it back must not make a time of the past.
  request.expiry = std::max(now, now + from_seconds(left));
  return request;
}

}  // namespace

Result<Request> parse_torch_request(std::string_view line, TimePoint now, WallTime wall) {
  auto object = parse_json(line);
  // What stands before a second beginning is a line whose writer did not come to its end.
  const auto begin = line.rfind(kBegin);
  if (!object && begin != 0 && begin != std::string_view::npos) {
    object = parse_json(line.substr(begin));
  }
  if (object && object->is_object()) return request_of(*object, now, wall);
  return refuse(fmt::format("is not a JSON object: {:?}", cut(line, kShown)));
}

}  // namespace elastrun::timer
