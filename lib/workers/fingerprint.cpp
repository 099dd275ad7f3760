// SPDX-License-Identifier: Apache-2.0
#include "workers/fingerprint.hpp"

#include "core/escapes.hpp"
#include "core/signal_names.hpp"
#include "core/text.hpp"
#include "workers/diagnostics.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fmt/format.h>
#include <string_view>
#include <utility>
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
struct UserPlace {
  std::string text;
  bool is_innermost = false;  // and not of a library that the program has called
};
UserPlace user_place_in(const std::vector<std::string>& lines) {
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
  return {without_escapes(users.empty() ? any : users), users == any};
}

UserPlace failure_place(const Failure& failure) {
  auto place = user_place_in(failure.last_lines);
  if (!place.text.empty() || !failure.error_file) return place;
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

// elastrun-restarts(7) has these tables.
constexpr std::string_view kCodeTypes =
    "SyntaxError IndentationError TabError NameError UnboundLocalError ImportError "
    "ModuleNotFoundError";
constexpr std::string_view kTypesOfCodeOrData =
    "TypeError KeyError AttributeError NotImplementedError IndexError RecursionError";
constexpr std::string_view kExternalTypes =
    "BrokenPipeError gaierror herror EOFError IncompleteRead ProtocolError RemoteProtocolError "
    "SSLEOFError MaxRetryError ChunkedEncodingError NameResolutionError DistStoreError "
    "DistNetworkError";
constexpr std::string_view kExternalWords = "Timeout|onnect|Unavailable|TooManyRequests";
// In small letters. "[errno -": of getaddrinfo(3), in another exception's text.
constexpr std::string_view kExternalTexts =
    "[errno -|timeout|timed out|name resolution|server error|http error 5|bad gateway|"
    "service unavailable|temporarily unavailable|too many requests|slow down|slowdown|try again|"
    "statuscode.unavailable|statuscode.deadline_exceeded|connection closed|connection was closed|"
    "connection aborted|connection lost|closed connection|closed the connection|"
    "failed to connect|network error|unhandled system error|ncclsystemerror";
constexpr std::array kExternalErrnos{
    EIO,          ENXIO,        EAGAIN,      EBUSY,      ENODEV,        ENFILE,    ENOSPC,
    EROFS,        EPIPE,        ENOLCK,      ENOLINK,    ECOMM,         EPROTO,    EUCLEAN,
    EREMOTEIO,    ESTALE,       EDQUOT,      EADDRINUSE, EADDRNOTAVAIL, ENETDOWN,  ENETUNREACH,
    ENETRESET,    ECONNABORTED, ECONNRESET,  ENOBUFS,    ENOTCONN,      ESHUTDOWN, ETIMEDOUT,
    ECONNREFUSED, EHOSTDOWN,    EHOSTUNREACH};

/// The type without its modules is one of these words.
bool is_of(std::string_view words, std::string_view type) {
  const auto name = type.substr(type.rfind('.') + 1);  // npos + 1 is 0
  return std::ranges::any_of(split(words, ' '), [&](const auto& one) { return one == name; });
}

bool has_one_of(std::string_view parts, std::string_view text) {
  return std::ranges::any_of(split(parts, '|'),
                             [&](const auto& one) { return text.contains(one); });
}

bool names_something_external(std::string_view type, const std::string& text) {
  if (is_of(kCodeTypes, type) || is_of(kTypesOfCodeOrData, type)) return false;
  const auto lower = to_lower(text);
  const auto has_errno = [&](int number) {
    return lower.contains(to_lower(std::strerror(number))) ||
           lower.contains(fmt::format("[errno {}]", number));
  };
  return is_of(kExternalTypes, type) || has_one_of(kExternalWords, type) ||
         has_one_of(kExternalTexts, lower) || std::ranges::any_of(kExternalErrnos, has_errno) ||
         blames_a_peer(lower);
}

/// Whether an exception that led to the last one names something external. Python prints it before
/// "The above exception was the direct cause", or "During handling of the above exception".
bool follows_from_external(const std::vector<std::string>& lines) {
  bool found = false, chained = false;
  for (auto line = lines.begin(); line != lines.end(); ++line) {
    if (line->contains("(most recent call last)") && !std::exchange(chained, false)) found = false;
    if (!line->contains("he above exception")) continue;
    const auto before = exception_in({lines.begin(), line}, false);
    found = found || (before && names_something_external(before->type, before->text()));
    chained = true;
  }
  return found;
}

bool is_external(const Failure& failure) {
  if (const auto& exception = failure.exception) {
    // The exceptions of a group stand below it.
    const bool in_group = exception->type.ends_with("ExceptionGroup") &&
                          std::ranges::any_of(failure.last_lines, [](const auto& line) {
                            return names_something_external({}, line);
                          });
    return in_group || names_something_external(exception->type, words_of(failure)) ||
           follows_from_external(failure.last_lines);
  }
  // A program in another language says why it exits, or aborts, in its last line.
  const bool says =
      failure.status.how == process::ExitStatus::How::Exited || failure.status.by_signal(SIGABRT);
  const auto& lines = failure.last_lines;
  const auto last = std::find_if(lines.rbegin(), lines.rend(),
                                 [](const auto& line) { return !trim(line).empty(); });
  return says && last != lines.rend() && names_something_external({}, *last);
}

/// Raised in a line of the user's program, before its first step, by an error that names code. A
/// script without steps may have read data for hours: there only those count that no data causes.
bool is_of_the_code(const Failure& failure) {
  if (!failure.exception || (failure.page && failure.page->step)) return false;
  const auto& type = failure.exception->type;
  const bool tells_steps = failure.page && failure.page->importer != 0;
  if (!is_of(kCodeTypes, type) && !(tells_steps && is_of(kTypesOfCodeOrData, type))) return false;
  const auto place = failure_place(failure);
  return place.is_innermost && !place.text.empty();
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
  if (is_external(failure)) return CauseClass::External;
  const bool by_signal = failure.status.how == process::ExitStatus::How::Signaled;
  if (by_signal && !failure.cut_short) return CauseClass::Crash;
  return is_of_the_code(failure) ? CauseClass::Code : CauseClass::Error;
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
  const auto place = failure_place(failure).text;
  if (!place.empty()) what = std::string(cut(what, kLongestType)) + "@" + place;
  return std::string(cut(what, kLongestFingerprint));
}

}  // namespace elastrun::workers
