// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <string>

namespace elastrun {

/// `program`, what is installed with it (elastrunctl, the Python package), and a link `torchrun` as
/// DIR/bin and DIR/share: a prefix that another container finds in PATH. Each file appears whole,
/// and over an older one also while that runs. Fails with Io.
Status install_into(const std::string& folder, const std::string& program);

}  // namespace elastrun
