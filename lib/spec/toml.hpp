// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/sources.hpp"

#include <string>
#include <string_view>

namespace elastrun::spec {

/// Reads the text of a job file (elastrun.toml(5)). `path` is only for messages and sources.
/// Fails, with exit code 2 and "PATH:LINE:COLUMN: ...", on bad TOML, on a key that is none (naming
/// the nearest that is one) and on a value of the wrong type (naming what was expected). An empty
/// text, or 0, for a key without a default means that it is not given.
Answer<TomlJob> parse_toml(std::string_view text, std::string_view path);

}  // namespace elastrun::spec
