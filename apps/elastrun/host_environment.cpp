// SPDX-License-Identifier: Apache-2.0
#include "host_environment.hpp"

#include "process/devices.hpp"
#include "rendezvous/session/handler.hpp"
#include "telemetry/events.hpp"

#include <cstdlib>
#include <utility>

namespace elastrun {

spec::HostEnvironment real_host_environment(std::string called_as) {
  const process::ReadVariable variable = [](const char* name) { return std::getenv(name); };
  auto around = spec::system_host_environment([variable] { return process::count_gpus(variable); },
                                              [] { return process::count_xpus(); });
  around.called_as = std::move(called_as);
  around.rdzv_backends = rendezvous::registered_backends();
  around.event_handlers = telemetry::events::handler_names();
  // resolve knows these two by itself.
  std::erase_if(around.event_handlers,
                [](const auto& name) { return name == "null" || name == "console"; });
  return around;
}

}  // namespace elastrun
