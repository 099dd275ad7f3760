// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/surroundings.hpp"

namespace elastrun {

/// This machine, for `spec::resolve`. `called_as`: argv[0].
spec::Surroundings real_surroundings(std::string called_as);

}  // namespace elastrun
