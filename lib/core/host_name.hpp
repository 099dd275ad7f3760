// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace elastrun {

/// Name of this machine as gethostname(2) has it: no name server is asked.
std::string host_name();

}  // namespace elastrun
