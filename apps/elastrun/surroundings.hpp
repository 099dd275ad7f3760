// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/surroundings.hpp"

namespace elastrun {

/// This machine, for `spec::resolve`.
spec::Surroundings real_surroundings();

}  // namespace elastrun
