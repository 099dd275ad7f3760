// SPDX-License-Identifier: Apache-2.0
#include "telemetry/control_plane.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "telemetry/wait_counter.hpp"

#include <exception>
#include <fmt/format.h>

namespace elastrun::telemetry::monitor {
namespace {

constexpr std::string_view kHandlers = "/handler/";

constexpr std::string_view kPage =
    "<!doctype html><title>worker</title><a href=\"/handler/\">handlers</a>\n";

}  // namespace

ControlPlane::ControlPlane() {
  handlers_["ping"] = [](const ControlRequest&) { return ControlResponse{.content = "pong"}; };
  handlers_["wait_counter_values"] = [](const ControlRequest&) {
    return ControlResponse{.content_type = "application/json", .content = wait_counter_values()};
  };
}

Status ControlPlane::add(std::string name, ControlHandler handler) {
  const std::lock_guard lock(mutex_);
  if (handlers_.contains(name)) return fail(Code::Usage, "there is a handler '" + name + "'");
  handlers_.emplace(std::move(name), std::move(handler));
  return {};
}

std::vector<std::string> ControlPlane::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [name, handler] : handlers_) all.push_back(name);
  return all;
}

ControlResponse ControlPlane::call(const std::string& name, const ControlRequest& request) const {
  ControlHandler handler;
  {
    const std::lock_guard lock(mutex_);
    const auto found = handlers_.find(name);
    if (found != handlers_.end()) handler = found->second;
  }
  if (!handler) {
    return {.status = 404,
            .content = fmt::format("Handler {} not found: known are {}\n", printable(name),
                                   join(names(), ", "))};
  }
  try {
    return handler(request);
  } catch (const std::exception& error) {
    return {.status = 500, .content = fmt::format("Handler {} failed: {}\n", name, error.what())};
  } catch (...) {
    return {.status = 500, .content = fmt::format("Handler {} failed\n", name)};
  }
}

ControlResponse ControlPlane::answer(std::string_view method, std::string_view path,
                                     const ControlRequest& request) const {
  if (method == "GET" && path == "/") {
    return {.content_type = "text/html", .content = std::string(kPage)};
  }
  if (method == "GET" && path == kHandlers) {
    json::array all;
    for (const auto& name : names()) all.emplace_back(name);
    return {.content_type = "application/json", .content = json::serialize(all)};
  }
  if (!path.starts_with(kHandlers)) return {.status = 404, .content = "not found\n"};
  if (method != "POST") return {.status = 405, .content = "use POST\n"};
  return call(std::string(path.substr(kHandlers.size())), request);
}

Result<bool> flag_of(const ControlRequest& request, const std::string& name, bool otherwise) {
  const auto found = request.parameters.find(name);
  if (found == request.parameters.end()) return otherwise;
  if (found->second == "true") return true;
  if (found->second == "false") return false;
  return fail(Code::Usage, fmt::format("parameter {}: '{}' is neither true nor false", name,
                                       printable(found->second)));
}

}  // namespace elastrun::telemetry::monitor
