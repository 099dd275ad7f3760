// SPDX-License-Identifier: Apache-2.0
#include "surroundings.hpp"

#include "process/devices.hpp"

#include <cstdlib>

namespace elastrun {

spec::Surroundings real_surroundings() {
  const process::ReadVariable variable = [](const char* name) { return std::getenv(name); };
  return spec::system_surroundings([variable] { return process::count_gpus(variable); },
                                   [] { return process::count_xpus(); });
}

}  // namespace elastrun
