// SPDX-License-Identifier: Apache-2.0
#include "telemetry/destinations.hpp"

#include <fmt/format.h>
#include <map>
#include <mutex>

namespace elastrun::telemetry::events {
namespace {

struct Destinations {
  std::mutex mutex;
  RouteId configured = 0;
  std::map<std::string, RouteId, std::less<>> by_name;
};
Destinations& destinations() {
  static auto* const all = new Destinations;
  return *all;
}

bool is_null(std::string_view destination) {
  return destination == "null" || destination == "dynamic_rendezvous";
}

std::string scope_of(std::string_view destination) {
  return fmt::format("torchelastic.to.{}.", destination);
}

Status open(std::string_view destination) {
  auto& all = destinations();
  const std::lock_guard lock(all.mutex);
  if (is_null(destination) || all.by_name.contains(destination)) return {};
  const auto handler = find_handler(destination);
  if (!handler) return std::unexpected(handler.error());
  const auto id = attach(process_pipeline(), *handler, scope_of(destination) + "*");
  all.by_name.emplace(destination, id);
  return {};
}

}  // namespace

void configure(std::shared_ptr<EventHandler> handler) {
  auto& all = destinations();
  const std::lock_guard lock(all.mutex);
  if (all.configured != 0) process_pipeline().unroute(all.configured);
  all.configured = handler ? attach(process_pipeline(), std::move(handler)) : 0;
}

Status record(Event event, std::string_view destination) {
  if (auto status = open(destination); !status) return status;
  record(process_pipeline(), std::move(event),
         is_null(destination) ? "torchelastic." : scope_of(destination));
  return {};
}

}  // namespace elastrun::telemetry::events
