// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/read_file.hpp"

namespace elastrun::process {
using elastrun::read_kernel_file;
}  // namespace elastrun::process
