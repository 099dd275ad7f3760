// SPDX-License-Identifier: Apache-2.0
#include "core/log.hpp"

#include "core/host.hpp"
#include "core/json.hpp"
#include "core/spdlog.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <unistd.h>

namespace elastrun::log {
namespace {

static_assert(static_cast<int>(Level::Debug) == spdlog::level::debug);
static_assert(static_cast<int>(Level::Warning) == spdlog::level::warn);
static_assert(static_cast<int>(Level::Critical) == spdlog::level::critical);

using spdlog::details::log_msg;
using spdlog::details::null_mutex;

spdlog::level::level_enum level_of(Level level) {
  return static_cast<spdlog::level::level_enum>(level);
}

/// torch writes its debug lines with V, which spdlog's own flags do not know.
class SeverityLetter final : public spdlog::custom_flag_formatter {
 public:
  void format(const log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    // By the number of spdlog's level, from trace on.
    constexpr std::string_view kLetters = "VVIWECC";
    out.push_back(kLetters[static_cast<std::size_t>(message.level)]);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return spdlog::details::make_unique<SeverityLetter>();
  }
};

/// torch's line; the prefix is repeated on each line of a message. What a message quotes may be any
/// bytes: none of them steers a terminal, here and below.
class TorchLines final : public spdlog::formatter {
 public:
  TorchLines() { line_.add_flag<SeverityLetter>('*').set_pattern("%*%m%d %H:%M:%S.%f %P %n] %v"); }
  void format(const log_msg& message, spdlog::memory_buf_t& out) override {
    std::string_view rest(message.payload.data(), message.payload.size());
    log_msg line = message;
    while (true) {
      const auto end = rest.find('\n');
      const auto text = without_controls(rest.substr(0, end), "\t");
      line.payload = {text.data(), text.size()};
      line_.format(line, out);
      if (end == std::string_view::npos) return;
      rest.remove_prefix(end + 1);
    }
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<TorchLines>(); }

 private:
  spdlog::pattern_formatter line_{"", spdlog::pattern_time_type::local, "\n"};
};

/// An object a message; the keys are those that collectors of clusters look for.
class JsonObjects final : public spdlog::formatter {
 public:
  void format(const log_msg& message, spdlog::memory_buf_t& out) override {
    constexpr std::array<std::string_view, 7> kSeverities{"DEBUG", "DEBUG",    "INFO",    "WARNING",
                                                          "ERROR", "CRITICAL", "CRITICAL"};
    spdlog::memory_buf_t time;
    time_.format(message, time);
    const json::value object = {
        {"time", std::string_view(time.data(), time.size())},
        {"severity", kSeverities[static_cast<std::size_t>(message.level)]},
        {"host", host_},
        {"pid", ::getpid()},
        {"area", std::string_view(message.logger_name.data(), message.logger_name.size())},
        {"message", without_controls({message.payload.data(), message.payload.size()}, "\t\n")}};
    const auto line = json::serialize(object) + "\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonObjects>(); }

 private:
  std::string host_ = host_name();
  spdlog::pattern_formatter time_{"%Y-%m-%dT%H:%M:%S.%fZ", spdlog::pattern_time_type::utc, ""};
};

class ConsoleSink final : public spdlog::sinks::base_sink<null_mutex> {
 public:
  void write_to(Writer writer, void* context) { writer_ = writer, context_ = context; }

 private:
  void sink_it_(const log_msg& message) override {
    spdlog::memory_buf_t lines;
    formatter_->format(message, lines);
    std::string_view rest(lines.data(), lines.size());
    if (writer_ != nullptr) return writer_(context_, rest);
    // One write(2) a message, so that those of several processes do not mix; a closed stderr is
    // ignored.
    while (!rest.empty()) {
      const auto written = ::write(STDERR_FILENO, rest.data(), rest.size());
      if (written <= 0) return;
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void flush_() override {}

  Writer writer_ = nullptr;
  void* context_ = nullptr;
};

class Log final : public spdlog::logger {
 public:
  Log() : logger("elastrun") {
    console->set_level(spdlog::level::warn);
    set_error_handler([](const std::string&) {});  // the log itself has failed
    add(console);
  }
  void add(std::shared_ptr<spdlog::sinks::sink> sink) {
    sink->set_formatter(make());
    sinks_.push_back(std::move(sink));
    find_level();
  }
  void remove(const std::shared_ptr<spdlog::sinks::sink>& sink) {
    std::erase(sinks_, sink);
    find_level();
  }
  void find_level() {
    auto least = spdlog::level::off;
    for (const auto& sink : sinks_) least = std::min(least, sink->level());
    set_level(least);
  }
  void use(Format format) {
    format_ = format;
    for (const auto& sink : sinks_) sink->set_formatter(make());
  }
  std::unique_ptr<spdlog::formatter> make() const {
    if (format_ == Format::Json) return std::make_unique<JsonObjects>();
    return std::make_unique<TorchLines>();
  }
  /// Writes like logger::log, with `area` as the logger's name.
  void write(spdlog::level::level_enum level, std::string_view area, std::string_view text) {
    log_it_(log_msg({}, {area.data(), area.size()}, level, {text.data(), text.size()}),
            should_log(level), false);
  }

  const std::shared_ptr<ConsoleSink> console = std::make_shared<ConsoleSink>();

 private:
  Format format_ = Format::Text;
};

/// Never destroyed: other objects of the program's life write to it in their destructors.
Log& the_log() {
  static Log& log = *new Log;
  return log;
}

}  // namespace

void set_level(Level level) {
  the_log().console->set_level(level_of(level));
  the_log().find_level();
}
void set_format(Format format) {
  the_log().use(format);
}
bool is_on(Level level) {
  return the_log().should_log(level_of(level));
}
void set_writer(Writer writer, void* context) {
  the_log().console->write_to(writer, context);
}
void add_sink(std::shared_ptr<spdlog::sinks::sink> sink) {
  the_log().add(std::move(sink));
}
void remove_sink(const std::shared_ptr<spdlog::sinks::sink>& sink) {
  the_log().remove(sink);
}
std::unique_ptr<spdlog::formatter> make_formatter() {
  return the_log().make();
}
void write(Level level, std::string_view area, std::string_view message) {
  the_log().write(level_of(level), area, message);
}

}  // namespace elastrun::log
