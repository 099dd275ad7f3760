// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <fmt/format.h>
#include <memory>
#include <string_view>
#include <utility>

namespace spdlog {
class formatter;
namespace sinks {
class sink;
}
}  // namespace spdlog

/// The launcher's own log, a spdlog logger. Its console sink writes to stderr, one fact a line:
///   `W1121 07:40:38.919123 7968 process] message`
/// (severity V I W E C, local time, pid, area; as torch writes them), or one JSON object a fact.
/// Threshold of the console by LOGLEVEL, WARNING by default. For one thread.
namespace elastrun::log {

enum class Level { Debug = 1, Info, Warning, Error, Critical };  // spdlog's numbers
enum class Format { Text, Json };

/// Lines below this do not get to the console. Starts as Warning.
void set_level(Level level);
/// The form of what follows. Starts as Text.
void set_format(Format format);
/// True if any sink takes a line of this level.
bool is_on(Level level);
/// Sends the console's finished lines to `writer` instead of stderr (the console that owns a status
/// line does this); {} restores stderr.
using Writer = void (*)(void* context, std::string_view line);
void set_writer(Writer writer, void* context);

/// Adds a sink, which keeps its own level and gets the current formatter.
void add_sink(std::shared_ptr<spdlog::sinks::sink> sink);
void remove_sink(const std::shared_ptr<spdlog::sinks::sink>& sink);
/// For the format of now. May be used on another thread.
std::unique_ptr<spdlog::formatter> make_formatter();

void write(Level level, std::string_view area, std::string_view message);

/// Writes a line of that level, if any sink takes it: log::warning("net", "{} is away", host).
template <Level kLevel>
struct Say {
  template <class... Args>
  void operator()(std::string_view area, fmt::format_string<Args...> form, Args&&... args) const {
    if (is_on(kLevel)) write(kLevel, area, fmt::format(form, std::forward<Args>(args)...));
  }
};
inline constexpr Say<Level::Debug> debug;
inline constexpr Say<Level::Info> info;
inline constexpr Say<Level::Warning> warning;
inline constexpr Say<Level::Error> error;

}  // namespace elastrun::log

namespace elastrun {

/// Warnings that a hostile or broken peer can cause at will: the first ones are written, the others
/// counted, and written at every power of two.
class RateLimitedLog {
 public:
  explicit RateLimitedLog(std::string_view area) : area_(area) {}

  template <class... Args>
  void add(fmt::format_string<Args...> form, Args&&... args) {
    constexpr std::uint64_t kAll = 16;
    ++count_;
    if (count_ > kAll && !std::has_single_bit(count_)) return;
    const auto text = fmt::format(form, std::forward<Args>(args)...);
    if (count_ <= kAll) return log::warning(area_, "{}", text);
    log::warning(area_, "{} ({} such lines so far)", text, count_);
  }

 private:
  std::string_view area_;
  std::uint64_t count_ = 0;
};

}  // namespace elastrun
