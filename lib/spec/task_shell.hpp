// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"

#include <cstdint>

namespace elastrun::spec {

/// Whether this program was typed into a shell with job control that runs as the process `task`, on
/// a terminal. Such a shell puts what is typed into process groups of their own; what the task is
/// itself, or a script of it starts, is in the task's group.
bool is_typed_in_shell(const HostEnvironment& around, std::int64_t task);

}  // namespace elastrun::spec
