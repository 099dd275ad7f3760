// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/log.hpp"

#include <string>
#include <string_view>

namespace elastrun::test {

/// What is logged while this exists.
struct LoggedText {
  LoggedText() {
    log::set_writer(
        [](void* to, std::string_view line) { static_cast<std::string*>(to)->append(line); },
        &text);
  }
  ~LoggedText() { log::set_writer(nullptr, nullptr); }
  LoggedText(const LoggedText&) = delete;
  LoggedText& operator=(const LoggedText&) = delete;

  std::string text;
};

}  // namespace elastrun::test
