// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>

/// The launcher's own log lines, on stderr, one fact a line:
///   `W1121 07:40:38.919123 7968 process] message`
/// (severity V I W E C, local time, pid, area). Threshold by LOGLEVEL, WARNING by default.
namespace elastrun::log {

enum class Level { Debug, Info, Warning, Error, Critical };

/// Lines below this are not written. Starts as Warning.
void set_level(Level level);
bool is_on(Level level);
/// Where finished lines go instead of stderr (the console that owns a status line), or back with
/// {}.
using Writer = void (*)(void* context, std::string_view line);
void set_writer(Writer writer, void* context);
void write(Level level, std::string_view area, std::string_view message);

template <class... Args>
void debug(std::string_view area, fmt::format_string<Args...> form, Args&&... args) {
  if (is_on(Level::Debug))
    write(Level::Debug, area, fmt::format(form, std::forward<Args>(args)...));
}
template <class... Args>
void info(std::string_view area, fmt::format_string<Args...> form, Args&&... args) {
  if (is_on(Level::Info)) write(Level::Info, area, fmt::format(form, std::forward<Args>(args)...));
}
template <class... Args>
void warning(std::string_view area, fmt::format_string<Args...> form, Args&&... args) {
  if (is_on(Level::Warning)) {
    write(Level::Warning, area, fmt::format(form, std::forward<Args>(args)...));
  }
}
template <class... Args>
void error(std::string_view area, fmt::format_string<Args...> form, Args&&... args) {
  if (is_on(Level::Error))
    write(Level::Error, area, fmt::format(form, std::forward<Args>(args)...));
}

}  // namespace elastrun::log
