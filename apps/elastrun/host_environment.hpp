// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"

namespace elastrun {

/// This machine, for `spec::resolve`. `called_as`: argv[0].
spec::HostEnvironment real_host_environment(std::string called_as);

}  // namespace elastrun
