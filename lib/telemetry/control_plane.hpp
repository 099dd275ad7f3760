// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

/// The worker's control plane of torch (torch/csrc/distributed/c10d/control_plane): named handlers
/// that a server calls. Pure: request in, response out; who listens is somebody else's.
namespace elastrun::telemetry::monitor {

struct ControlRequest {
  std::string body{};
  std::map<std::string, std::string> parameters{};  // of the query
};
struct ControlResponse {
  int status = 200;
  std::string content_type = "text/plain";
  std::string content{};
};
using ControlHandler = std::function<ControlResponse(const ControlRequest&)>;

/// For all threads; handlers are called without a lock.
class ControlPlane {
 public:
  /// With `ping` and `wait_counter_values`.
  ControlPlane();
  /// Fails with Usage if there is one of that name.
  Status add(std::string name, ControlHandler handler);
  std::vector<std::string> names() const;
  /// GET `/`: a page with links; GET `/handler/`: the names as JSON; POST `/handler/NAME`: what it
  /// answers, 404 if there is none, 500 with the text if it throws; 405 for another method.
  ControlResponse answer(std::string_view method, std::string_view path,
                         const ControlRequest& request = {}) const;

 private:
  ControlResponse call(const std::string& name, const ControlRequest& request) const;
  mutable std::mutex mutex_;
  std::map<std::string, ControlHandler> handlers_;
};

/// A parameter that is `true` or `false`, in lower case. Fails with Usage for another value; for
/// handlers that answer such a request with 400.
Result<bool> flag_of(const ControlRequest& request, const std::string& name, bool otherwise);

}  // namespace elastrun::telemetry::monitor
