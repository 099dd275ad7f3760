// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include <ctime>
#include <sys/time.h>
#include <unistd.h>

namespace elastrun::log {
namespace {

Level threshold = Level::Warning;
Writer writer = nullptr;
void* writer_context = nullptr;

std::string prefix(Level level, std::string_view area) {
  constexpr std::string_view kLetters = "VIWEC";
  timeval now{};
  ::gettimeofday(&now, nullptr);
  std::tm parts{};
  ::localtime_r(&now.tv_sec, &parts);
  return fmt::format("{}{:02}{:02} {:02}:{:02}:{:02}.{:06} {} {}] ",
                     kLetters[static_cast<std::size_t>(level)], parts.tm_mon + 1, parts.tm_mday,
                     parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_usec, ::getpid(), area);
}

void write_to_stderr(std::string_view line) {
  // One write(2) a line, so that lines of several processes do not mix; a closed stderr is no
  // error.
  while (!line.empty()) {
    const auto written = ::write(STDERR_FILENO, line.data(), line.size());
    if (written <= 0) return;
    line.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void set_level(Level level) {
  threshold = level;
}
bool is_on(Level level) {
  return level >= threshold;
}

void set_writer(Writer new_writer, void* context) {
  writer = new_writer;
  writer_context = context;
}

void write(Level level, std::string_view area, std::string_view message) {
  std::string lines;
  const std::string start = prefix(level, area);
  while (true) {  // the prefix is repeated on each line of a message, as torchrun does
    const auto end = message.find('\n');
    lines.append(start).append(message.substr(0, end)).append("\n");
    if (end == std::string_view::npos) break;
    message.remove_prefix(end + 1);
  }
  if (writer != nullptr) {
    writer(writer_context, lines);
  } else {
    write_to_stderr(lines);
  }
}

}  // namespace elastrun::log
