// SPDX-License-Identifier: Apache-2.0
#include "workers/fingerprint.hpp"

#include "core/escapes.hpp"
#include "core/signal_names.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"
#include "workers/diagnostics.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>
#include <vector>

namespace elastrun::workers {
namespace {

using spec::CauseClass;

// elastrun-protocol(7): a memory's texts have 200 bytes.
constexpr std::size_t kLongestFingerprint = 200, kLongestType = 120;

/// "train.py:7" of a frame, as Python's tracebacks and faulthandler(3) write it, behind whatever a
/// launcher or a logger put before it; empty for other lines.
struct SeenFrame {
  std::string place;
  bool of_a_library = false;
};
SeenFrame seen_frame_in(std::string_view line) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  const auto begin = line.find(kFile);
  const auto end = line.find(kLine);
  if (begin == line.npos || end == line.npos || end < begin) return {};
  const auto path = line.substr(begin + kFile.size(), end - begin - kFile.size());
  const auto digits = line.substr(end + kLine.size());
  const auto number = digits.substr(0, digits.find_first_not_of("0123456789"));
  if (path.empty() || number.empty()) return {};
  const bool library = path.starts_with('<') || path.contains("/site-packages/") ||
                       path.contains("/dist-packages/") || path.contains("/lib/python");
  return {fmt::format("{}:{}", path.substr(path.rfind('/') + 1), number), library};
}

/// The innermost frame of the user's program in the last traceback; of any program if there is
/// none. faulthandler writes the innermost one first.
std::string user_place_in(const std::vector<std::string>& lines) {
  std::string users, any;
  bool innermost_first = false;
  for (const auto& line : lines) {
    if (line.contains("(most recent call last)")) users = any = {}, innermost_first = false;
    if (line.contains("(most recent call first)")) {
      if (!any.empty() && innermost_first) break;  // of other threads
      users = any = {}, innermost_first = true;
    }
    const auto frame = seen_frame_in(line);
    if (frame.place.empty()) continue;
    if (!innermost_first || any.empty()) any = frame.place;
    if (!frame.of_a_library && (!innermost_first || users.empty())) users = frame.place;
  }
  return without_escapes(users.empty() ? any : users);
}

std::string failure_place(const Failure& failure) {
  const auto place = user_place_in(failure.last_lines);
  if (!place.empty() || !failure.error_file) return place;
  return user_place_in(split(failure.error_file->callstack, '\n'));
}

std::string words_of(const Failure& failure) {
  std::string text = failure.exception ? failure.exception->text() : std::string();
  if (failure.error_file) text += failure.error_file->message;
  return to_lower(text);
}

/// Of the device or its driver, and not of what a program asked of it: an assertion on the device
/// or an access out of bounds are mostly the program's, and so is an unspecified launch failure
/// (cudaErrorLaunchFailure of the CUDA runtime). NCCL's "unhandled system error" is a socket's.
bool blames_the_gpu(std::string_view text) {
  constexpr std::array<std::string_view, 6> kSigns{
      "uncorrectable ecc",           "fallen off the bus",
      "cuda error: hardware",        "unhandled cuda error",
      "cudaerrordevicesunavailable", "all cuda-capable devices are busy or unavailable"};
  return std::ranges::any_of(kSigns, [&](auto sign) { return text.contains(sign); });
}

/// As torch says it, and as NCCL passes it on.
bool is_out_of_memory(std::string_view text) {
  return text.contains("outofmemoryerror") || text.contains("cuda out of memory") ||
         (text.contains("cuda failure") && text.contains("'out of memory'"));
}

}  // namespace

CauseClass class_of(const Failure& failure) {
  // What this agent knows for sure comes before what the output says.
  if (!failure.expired_timer.empty()) return CauseClass::Timer;
  if (!failure.out_of_memory.empty()) return CauseClass::Oom;
  if (ended_by_watchdog(failure)) return CauseClass::Hang;
  const auto text = words_of(failure);
  if (is_out_of_memory(text)) return CauseClass::Oom;
  if (blames_the_gpu(text)) return CauseClass::Gpu;
  const bool by_signal = failure.status.how == process::ExitStatus::How::Signaled;
  return by_signal && !failure.cut_short ? CauseClass::Crash : CauseClass::Error;
}

std::string fingerprint_of(const Failure& failure) {
  std::string what;
  if (failure.status.how == process::ExitStatus::How::Signaled && !failure.cut_short) {
    what = signal_name(failure.status.number);
  } else if (failure.exception) {
    what = failure.exception->type;
  } else {
    what = fmt::format("exit {}", failure.status.number);
  }
  // Whole wherever it goes: what was cut on its way to the next coordinator would be another one.
  const auto place = failure_place(failure);
  if (!place.empty()) what = std::string(cut(what, kLongestType)) + "@" + place;
  return std::string(cut(what, kLongestFingerprint));
}

}  // namespace elastrun::workers
