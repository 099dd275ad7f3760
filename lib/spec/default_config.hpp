// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace elastrun::spec {

/// The text of config/elastrun.toml: every key with its meaning and its default, commented out.
std::string default_config();

}  // namespace elastrun::spec
