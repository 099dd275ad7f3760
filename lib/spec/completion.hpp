// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace elastrun::spec {

/// A script that teaches `shell` (bash, zsh, fish) the options of elastrun and their values. Empty
/// for any other shell.
std::string completion_script(std::string_view shell);

}  // namespace elastrun::spec
