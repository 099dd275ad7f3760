// SPDX-License-Identifier: Apache-2.0
#include "plain_step.hpp"

#include "export/line_scanner.hpp"

namespace elastrun::ctl {
namespace {

constexpr std::int64_t kFarthest = 9'000'000'000'000'000;  // doubles name every number below it

enum Member : unsigned { kJobName = 1, kStep = 2, kTime = 4, kLogTime = 8, kPayload = 16 };

class Reader {
 public:
  explicit Reader(std::string_view line) : line_(line) {}

  std::optional<PlainStep> read() {
    if (!object(false) || !line_.at_end()) return std::nullopt;
    // Of an entry in a payload the log's time stands beside that.
    const auto needed = kJobName | kStep | kTime;
    return (seen_ & needed) == needed ? std::optional(found_) : std::nullopt;
  }

 private:
  bool object(bool inner) {
    if (!line_.take('{')) return false;
    do {
      const auto name = line_.text();
      if (!name || !line_.take(':') || !member(*name, inner)) return false;
    } while (line_.take(','));
    return line_.take('}');
  }

  bool member(std::string_view name, bool inner) {
    if (name == "job_name") return first(kJobName) && job();
    if (name == "step_count") return first(kStep) && step();
    if (name == "step_start_time") return first(kTime) && real(found_.time);
    if (inner) return false;
    if (name == "log_time") return first(kLogTime) && real(found_.log_time);
    // All of an entry is in its payload.
    return name == "payload" && (seen_ & ~unsigned{kLogTime}) == 0 && object(true) &&
           first(kPayload);
  }

  bool first(Member member) {
    // What follows a payload would be no part of it.
    if ((seen_ & (member | (member == kLogTime ? 0U : unsigned{kPayload}))) != 0) return false;
    seen_ |= member;
    return true;
  }

  bool job() {
    const auto text = line_.text();
    if (text) found_.job = *text;
    return text.has_value();
  }

  bool step() {
    telemetry::Value number;
    if (!line_.number(number)) return false;
    const auto* whole = std::get_if<std::int64_t>(&number);
    // The slow way decides about the others: this one must never give another answer, only a
    // quicker one.
    if (whole == nullptr || *whole < -kFarthest || *whole > kFarthest) return false;
    found_.step = *whole;
    return true;
  }

  bool real(double& into) {
    telemetry::Value number;
    if (!line_.number(number)) return false;
    const auto* whole = std::get_if<std::int64_t>(&number);
    into = whole != nullptr ? static_cast<double>(*whole) : std::get<double>(number);
    return true;
  }

  exporter::LineScanner line_;
  PlainStep found_;
  unsigned seen_ = 0;
};

}  // namespace

std::optional<PlainStep> read_plain_step(std::string_view line) {
  return Reader(line).read();
}

}  // namespace elastrun::ctl
