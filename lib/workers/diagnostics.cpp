// SPDX-License-Identifier: Apache-2.0

#include "workers/diagnostics.hpp"

#include "core/signal_names.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"
#include "workers/message.hpp"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

namespace elastrun::workers {
namespace {
namespace json = boost::json;

constexpr std::size_t kMaxFile = 1u << 20;  // a stack of thousands of frames is far below this
constexpr std::size_t kMaxCopy = 64u << 20;
constexpr std::size_t kPiece = 1u << 20;    // of a read
constexpr std::size_t kMaxRaw = 64u << 10;  // what is kept of it for people
constexpr std::size_t kMaxDepth = 32;       // of nested JSON; the known forms need 3

/// As Python's int(): a whole number, or text that holds one.
std::optional<std::int64_t> whole_number(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_string()) return parse_int(std::string_view(value.get_string()));
  // What is beyond 63 bits, or no number at all, has no value as an integer.
  constexpr double kMost = 9e18;
  const auto* number = value.if_double();
  if (number == nullptr || !(std::abs(*number) < kMost)) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

/// Seconds since the epoch. Nothing if it is outside the range of WallTime: up to the year 2262.
std::optional<std::int64_t> time_in(const json::value* value) {
  constexpr auto kLatest =
      std::chrono::floor<std::chrono::seconds>(WallTime::max()).time_since_epoch().count();
  const auto seconds = value == nullptr ? std::nullopt : whole_number(*value);
  return seconds && *seconds >= 0 && *seconds < kLatest ? seconds : std::nullopt;
}

/// As a terminal may show it, of one or more lines.
std::string text_of(const json::object& object, std::string_view key) {
  const auto* value = object.if_contains(key);
  if (value == nullptr || !value->is_string()) return {};
  return without_escapes(value->get_string(), "\n\t");
}

void read_object_message(const json::object& message, ErrorFile& out) {
  out.understood = true;
  out.message = text_of(message, "message");
  const auto* extra = message.if_contains("extraInfo");
  if (extra == nullptr || !extra->is_object()) return;
  out.callstack = text_of(extra->get_object(), "py_callstack");
  out.timestamp = time_in(extra->get_object().if_contains("timestamp"));
}

std::optional<json::value> parse_strictly(std::string_view text) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = kMaxDepth;
  auto value = json::parse(text, error, {}, options);
  if (error) return std::nullopt;
  return value;
}

std::optional<json::value> parse(std::string_view text) {
  auto value = parse_strictly(text);
  return value ? value : parse_strictly(with_whole_characters(text));
}

/// Takes a word, and blanks before it, from JSON that goes on or ends anywhere.
bool take(std::string_view& rest, std::string_view word) {
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  if (!rest.starts_with(word)) return false;
  rest.remove_prefix(word.size());
  return true;
}

/// The text whose opening quote has been taken, as far as it is there, up to kMaxRaw.
std::string begun_text(std::string_view rest) {
  const auto read = [&](std::size_t size) {
    return parse(fmt::format("\"{}\"", rest.substr(0, size)));
  };
  std::size_t end = 0;
  while (end < std::min(rest.size(), kMaxRaw) && rest[end] != '"') {
    end += rest[end] == '\\' ? 2 : 1;
  }
  // At most a pair of \uXXXX may have been cut in the middle.
  for (end = std::min(end, rest.size()); end > 0 && !read(end); --end) {
    if (std::min(rest.size(), kMaxRaw) > end + 12) return {};
  }
  const auto value = read(end);
  return value ? std::string(std::string_view(value->get_string())) : std::string();
}

/// Of a record that is not there as a whole: torch writes the message first.
void read_beginning(std::string_view text, ErrorFile& out) {
  const auto take_key = [&] { return take(text, "\"message\"") && take(text, ":"); };
  if (!take(text, "{") || !take_key()) return;
  const bool plain = !take(text, "{");
  if ((!plain && !take_key()) || !take(text, "\"")) return;
  out.message = without_escapes(begun_text(text), "\n\t");
  out.understood = !out.message.empty();
  out.plain = plain;
}

/// Up to `most` + 1 bytes of a file, and when it was written.
Result<std::string> read_some(const std::string& path, std::size_t most = kMaxFile,
                              WallTime* written = nullptr) {
  // O_NONBLOCK: it may be a FIFO.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::unexpected(errno_error(Code::Io, "cannot read " + path, errno));
  struct stat info {};
  if (written != nullptr && ::fstat(fd.get(), &info) == 0) {
    *written = WallTime(std::chrono::seconds(info.st_mtim.tv_sec) +
                        std::chrono::nanoseconds(info.st_mtim.tv_nsec));
  }
  std::string text;
  std::size_t have = 0;
  // One byte more than is allowed, by which the caller sees that the file is too large.
  while (have <= most) {
    text.resize(std::min(most + 1, have + kPiece));
    const auto got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  return text;
}

/// In the form of torch's `@record`.
json::value record_of(std::string_view message, WallTime when) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(when.time_since_epoch());
  return {{"message",
           {{"message", message},
            {"extraInfo",
             {{"py_callstack", message}, {"timestamp", std::to_string(seconds.count())}}}}}};
}

/// What people are to be warned of; empty: nothing.
Result<std::string> replace_file(const std::string& to, std::string_view text) {
  const auto old = files::is_written_to(to) ? Result<std::string>() : read_some(to);
  if (auto put = files::put_file(to, text, 0644); !put) return std::unexpected(put.error());
  if (!old || old->empty()) return {};
  return fmt::format("{} was there already and is replaced. It held: {}", to,
                     without_escapes(cut(*old, kMaxRaw)));
}

}  // namespace

ErrorFile parse_error_file(std::string_view text) {
  ErrorFile out;
  out.raw = std::string(cut(text, kMaxRaw));
  if (text.size() > kMaxFile) {
    read_beginning(text, out);
    return out;
  }
  const auto value = parse(text);
  if (!value || !value->is_object()) return out;
  const auto* message = value->get_object().if_contains("message");
  if (message == nullptr) return out;
  if (message->is_object()) {
    read_object_message(message->get_object(), out);
  } else if (message->is_string()) {
    out.understood = out.plain = true;
    out.message = text_of(value->get_object(), "message");
    out.timestamp = time_in(value->get_object().if_contains("timestamp"));
  }
  return out;
}

std::optional<ErrorFile> read_error_file(const std::string& path) {
  if (path.empty()) return std::nullopt;
  WallTime written{};
  const auto text = read_some(path, kMaxFile, &written);
  if (!text) return std::nullopt;
  auto file = parse_error_file(*text);
  if (written != WallTime{}) file.written = written;
  return file;
}

Result<std::string> copy_error_file(const std::string& from, const std::string& to, int exit_code) {
  WallTime written{};
  auto text = read_some(from, kMaxCopy, &written);
  if (!text) return std::unexpected(text.error());
  if (text->size() > kMaxCopy) {  // half of it would be no JSON
    auto message = parse_error_file(*text).message;
    if (message.empty()) message = from + " is larger than 64 MiB";
    return replace_file(to, json::serialize(record_of(message, written)));
  }
  auto value = parse(*text);
  auto* message =
      value && value->is_object() ? value->get_object().if_contains("message") : nullptr;
  if (exit_code != 0 && message != nullptr && message->is_object()) {
    // As torch's ErrorHandler, which puts the exit code of the process into the file that it hands
    // on.
    message->get_object()["errorCode"] = exit_code;
    *text = json::serialize(*value);
  }
  return replace_file(to, *text);
}

Result<std::string> write_error_file(const std::string& to, std::string_view message,
                                     WallTime when) {
  return replace_file(to, json::serialize(record_of(message, when)));
}

namespace {

using spec::CauseClass;

bool exited(const Failure& failure) {
  return failure.status.how == process::ExitStatus::How::Exited;
}

// elastrun-protocol(7): a memory's texts have 200 bytes.
constexpr std::size_t kLongestFingerprint = 200, kLongestType = 120;

/// A frame, as Python's tracebacks and faulthandler(3) write it: `File "/home/me/train.py", line
/// 7`, behind whatever a launcher or a logger put before it.
struct Frame {
  std::string_view path, number;  // empty: it is another line
  /// "train.py:7"; empty for other lines.
  std::string place() const {
    const auto file = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
    if (file.empty() || number.empty()) return {};
    return fmt::format("{}:{}", without_escapes(file), number);
  }
  /// Not of the user's program, but of an installed package.
  bool is_installed(std::string_view python) const {
    return path.contains("/site-packages/") || path.contains("/dist-packages/") ||
           path.contains(python);
  }
};
Frame frame_in(std::string_view line) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  const auto begin = line.find(kFile);
  const auto end = line.find(kLine);
  if (begin == line.npos || end == line.npos || end < begin + kFile.size()) return {};
  const auto digits = line.substr(end + kLine.size());
  return {line.substr(begin + kFile.size(), end - begin - kFile.size()),
          digits.substr(0, digits.find_first_not_of("0123456789"))};
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
    const auto frame = frame_in(line);
    const auto place = frame.place();
    if (place.empty()) continue;
    const bool of_a_library = frame.path.starts_with('<') || frame.is_installed("/lib/python");
    if (!innermost_first || any.empty()) any = place;
    if (!of_a_library && (!innermost_first || users.empty())) users = place;
  }
  return {users.empty() ? any : users, users == any};
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
// As gloo, NCCL and torch's store word the loss of a peer, in small letters: releases differ in
// those.
constexpr std::string_view kPeerTexts =
    "connection closed by peer|for recv operation to complete|timeout caused pair closure|"
    "connection reset by peer|broken pipe|socket closed|remote process exited|"
    "connectfullmesh failed|recvvaluecallback|ncclremoteerror|monitoredbarrier|"
    "failed to recv, got 0 bytes";
// Of the device or its driver, and not of what a program asked of it: an assertion on the device or
// an access out of bounds are mostly the program's, and so is an unspecified launch failure
// (cudaErrorLaunchFailure of the CUDA runtime). NCCL's "unhandled system error" is a socket's.
constexpr std::string_view kGpuTexts =
    "uncorrectable ecc|fallen off the bus|cuda error: hardware|unhandled cuda error|"
    "cudaerrordevicesunavailable|all cuda-capable devices are busy or unavailable";
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
  const bool says = exited(failure) || failure.status.by_signal(SIGABRT);
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

constexpr std::string_view kStack = "Stack (most recent call last):";  // logging(stack_info=True)
constexpr std::string_view kGroup = "  + Exception Group Traceback (most recent call last):";
constexpr std::size_t kMaxMessage = 500;  // of an exception's first line, for a sentence
// From the traceback to the exit: an interpreter that releases devices and joins threads. What was
// printed longer ago belongs to an error that the program had got over.
constexpr Duration kLongestEnd = std::chrono::seconds(10);
// After a traceback at which a program ends it seldom writes more than its message.
constexpr Duration kLastMessage = std::chrono::seconds(1);
// The kernel stamps files by a clock that is up to a tick late.
constexpr Duration kFileTick = std::chrono::milliseconds(10);

/// The line without "[rank3]: ", which torch puts before each line of a worker's last traceback.
std::string_view without_rank(std::string_view line) {
  constexpr std::string_view kOpen = "[rank";
  if (!line.starts_with(kOpen)) return line;
  const auto close = line.find("]:");
  if (close == std::string_view::npos) return line;
  const auto number = line.substr(kOpen.size(), close - kOpen.size());
  if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) {
    return line;
  }
  line.remove_prefix(close + 2);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

/// The line without the margin of an exception group. Its parts stand further to the right, and
/// stay behind their margins: the group is what was raised.
std::string_view without_margin(std::string_view line) {
  constexpr std::string_view kMargin = "  |";
  if (!line.starts_with(kMargin)) return line;
  line.remove_prefix(kMargin.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

bool is_dotted_name(std::string_view text) {
  if (text.empty() || text.front() == '.' || text.back() == '.') return false;
  return std::ranges::all_of(text, [](char c) {
    return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  });
}

/// "module.Type: message" or "Type".
std::optional<PythonException> exception_line(std::string_view line) {
  const auto colon = line.find(':');
  const auto type = trim(line.substr(0, colon));
  if (!is_dotted_name(type) || (type.front() >= '0' && type.front() <= '9')) return std::nullopt;
  PythonException found{std::string(type), {}, {}};
  if (colon != std::string_view::npos) {
    found.message = without_escapes(cut(trim(line.substr(colon + 1)), kMaxMessage));
  }
  return found;
}

/// `  File "train.py", line 7, in main`. Stacks that faulthandler(3) prints have no comma there.
/// Other stacks have the same frames: those alone make no traceback.
bool is_frame(std::string_view line) {
  const auto number = line.find("\", line ");
  if (!line.starts_with("  File \"") || number == std::string_view::npos) return false;
  return line.find(", in ", number + 2) != std::string_view::npos;
}

/// The frame of a line of a traceback, with or without a function.
Frame traceback_frame(std::string_view line) {
  return line.starts_with("  File \"") ? frame_in(line) : Frame();
}

bool is_of_parsing(std::string_view type) {
  return type == "SyntaxError" || type == "IndentationError" || type == "TabError";
}

bool is_of_importing(std::string_view type) {
  return type == "ImportError" || type == "ModuleNotFoundError";
}

/// Where the traceback in hand points to, for the exceptions whose message does not say it.
struct LastPlaces {
  std::string any, users;

  void see(std::string_view line) {
    const auto frame = traceback_frame(line);
    auto place = frame.place();
    if (place.empty()) return;
    // A frame of Python's import machinery neither.
    if (!frame.path.starts_with("<frozen ") && !frame.is_installed("/lib/python3")) users = place;
    any = std::move(place);
  }
  std::string of(std::string_view type) const {
    if (is_of_parsing(type)) return any;
    if (is_of_importing(type)) return users.empty() ? any : users;
    return {};
  }
};

/// Of torch's @record, which writes the error file: an exception from there tells of a disk that is
/// full, while the one before it is why the worker failed.
bool is_in_record(std::string_view frame) {
  return frame.ends_with(", in record_exception") || frame.ends_with(", in _write_error_file");
}

/// Second of the failure: that of the error file, else that of `at`, which is the end by torchrun's
/// rule. It is counted from the first end, so that a clock that was set back meanwhile changes no
/// order.
std::int64_t second_of(const Failure& failure, TimePoint at, const Failure& first) {
  if (failure.error_file && failure.error_file->timestamp) return *failure.error_file->timestamp;
  const auto wall = first.wall + (at - first.at);
  return std::chrono::floor<std::chrono::seconds>(wall).time_since_epoch().count();
}

bool is_crash(const Failure& failure) {
  constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
  return !exited(failure) && std::ranges::find(kCrashes, failure.status.number) != kCrashes.end() &&
         !ended_by_watchdog(failure);
}

std::string said(const Failure& failure) {
  if (failure.exception) return failure.exception->text();
  return failure.error_file ? failure.error_file->message : std::string();
}

bool blames_others(const Failure& failure) {
  return ended_by_watchdog(failure) || blames_a_peer(said(failure));
}

/// When its error file was written, by the clock of the other moments.
std::optional<TimePoint> recorded_at(const Failure& failure) {
  if (!failure.error_file || !failure.error_file->written) return std::nullopt;
  return failure.at - (failure.wall - *failure.error_file->written);
}

/// Has ended without a reason, or for one that lies with a peer.
bool explains_nothing(const Failure& failure) {
  return blames_others(failure) ||
         (exited(failure) && !failure.exception && last_words(failure).empty());
}

/// Takes one that was stopped for one that has failed, if it had said why before that. A traceback
/// may be of an error that the program has got over: if it has written more since, it counts only
/// where those that have ended `explain_nothing`.
bool counts_as_failed(Failure& failure, bool explain_nothing) {
  const auto recorded = recorded_at(failure);
  const auto& printed = failure.traceback_at;
  const bool by_file =
      failure.error_file && (!recorded || *recorded + kFileTick <= failure.stopped_at);
  bool by_traceback = printed && failure.exception && *printed <= failure.stopped_at &&
                      failure.stopped_at - *printed <= kLongestEnd;
  const bool is_last =
      by_traceback && failure.wrote_at.value_or(*printed) - *printed <= kLastMessage;
  by_traceback = by_traceback && (is_last || explain_nothing);
  if (!by_file && !by_traceback) return false;
  failure.stopped_by_us = false;
  return failure.cut_short = true;
}

/// Who began before whom; `first`: the one that ended first.
bool began_before(const Failure& one, const Failure& other, const Failure& first) {
  const auto order = [&](const Failure& failure) {
    const auto at = evident_at(failure);
    return std::tuple(second_of(failure, at, first), failure.stopped_by_us, at);
  };
  return order(one) < order(other);
}

std::size_t choose_culprit(const Judgement& judgement, const Failure& first) {
  const auto& failures = judgement.failures;
  std::optional<std::size_t> best;
  if (!blames_others(failures[judgement.root])) best = judgement.root;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (is_victim(failures[i])) continue;
    if (!best || began_before(failures[i], failures[*best], first)) best = i;
  }
  return best.value_or(judgement.root);
}

}  // namespace

CauseClass class_of(const Failure& failure) {
  // What this agent knows for sure comes before what the output says.
  if (!failure.expired_timer.empty()) return CauseClass::Timer;
  if (!failure.out_of_memory.empty()) return CauseClass::Oom;
  if (ended_by_watchdog(failure)) return CauseClass::Hang;
  const auto text = words_of(failure);
  if (is_out_of_memory(text)) return CauseClass::Oom;
  if (has_one_of(kGpuTexts, text)) return CauseClass::Gpu;
  if (is_external(failure)) return CauseClass::External;
  if (!exited(failure) && !failure.cut_short) return CauseClass::Crash;
  return is_of_the_code(failure) ? CauseClass::Code : CauseClass::Error;
}

std::string fingerprint_of(const Failure& failure) {
  std::string what;
  if (!exited(failure) && !failure.cut_short) {
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

std::optional<PythonException> exception_in(const std::vector<std::string>& lines, bool are_all) {
  // Frames alone do not make a traceback: logging(stack_info=True) and traceback.print_stack()
  // write the same. Only before all else may they belong to a traceback whose header was forgotten.
  bool header_forgotten = !are_all && !lines.empty() && !lines.front().ends_with(kStack);
  bool in_traceback = false, in_record = false;
  std::optional<PythonException> last;
  LastPlaces places;
  for (const auto& whole : lines) {
    const auto plain = without_escapes(whole);  // Python 3.13 colours them
    const auto line = without_margin(without_rank(plain));
    const bool indented = line.empty() || line.front() == ' ' || line.front() == '\t';
    if (line.starts_with("Traceback (most recent call last):") || line.starts_with(kGroup)) {
      in_traceback = true;
      in_record = false;
      places = {};
    } else if (is_frame(line)) {
      places.see(line);
      in_traceback = in_traceback || header_forgotten;
      in_record = in_traceback && (in_record || is_in_record(line));
    } else if (!traceback_frame(line).place().empty()) {
      places.see(line);  // of a file that cannot be parsed: no function, often no header above it
    } else if (!indented) {
      // Notes and chained text follow an exception's line, so only the first line counts.
      auto found = exception_line(line);
      if (found) found->place = places.of(found->type);
      const bool parsing = found && is_of_parsing(found->type) && !found->place.empty();
      if (found && (in_traceback || parsing) && !(in_record && last)) last = std::move(found);
      in_traceback = in_record = false;
      places = {};
    }
    // The first line may be the end of one, which was indented.
    if (!indented && &whole != &lines.front()) header_forgotten = false;
  }
  return last;
}

std::optional<PythonException> exception_of(const Failure& failure) {
  if (failure.error_file && failure.error_file->understood) {
    const auto& message = failure.error_file->message;
    const auto first_line = std::string_view(message).substr(0, message.find('\n'));
    if (auto found = exception_line(first_line)) {
      const auto printed = exception_in(failure.last_lines, failure.lines_are_all);
      // The error file has no place. The traceback has one, if it is of the same exception.
      if (printed && printed->type == found->type) found->place = printed->place;
      return found;
    }
  }
  return exception_in(failure.last_lines, failure.lines_are_all);
}

bool ended_by_watchdog(const Failure& failure) {
  if (!failure.status.by_signal(SIGABRT)) return false;
  return std::ranges::any_of(failure.last_lines, [](const std::string& line) {
    return has_one_of(
        "Watchdog caught collective operation timeout|watchdog thread terminated with exception",
        line);
  });
}

bool blames_a_peer(std::string_view text) {
  return has_one_of(kPeerTexts, to_lower(text));
}

bool is_victim(const Failure& failure) {
  if (is_crash(failure) || !failure.out_of_memory.empty()) return false;
  if (failure.stopped_by_us || ended_by_watchdog(failure)) return true;
  return (exited(failure) || failure.cut_short) && blames_a_peer(said(failure));
}

TimePoint evident_at(const Failure& failure) {
  auto earliest = failure.at;
  const auto consider = [&](TimePoint when) {
    if (failure.cut_short || failure.at - when <= kLongestEnd) earliest = std::min(earliest, when);
  };
  // A signal's death has nothing to do with what the program printed.
  if ((exited(failure) || failure.cut_short) && failure.traceback_at)
    consider(*failure.traceback_at);
  if (const auto recorded = recorded_at(failure)) consider(*recorded);
  return earliest;
}

std::optional<Duration> exit_time(const Failure& failure) {
  const auto time = failure.at - evident_at(failure);
  return !exited(failure) || time > Duration::zero() ? std::optional(time) : std::nullopt;
}

bool is_first_known(const std::vector<Failure>& failures, const std::vector<Failure>& running) {
  const auto& ended_first = *std::ranges::min_element(failures, {}, &Failure::at);
  const auto began_first =
      std::ranges::min_element(failures, [&](const Failure& one, const Failure& other) {
        return began_before(one, other, ended_first);
      });
  const bool somebody_else = std::ranges::any_of(running, [&](const Failure& suspect) {
    // It has written why it fails, and has merely not ended yet.
    if (suspect.error_file) return true;
    return evident_at(suspect) < suspect.at && began_before(suspect, *began_first, ended_first);
  });
  // Where all blame others, the one to blame has not ended yet.
  return !somebody_else && !std::ranges::all_of(failures, blames_others);
}

Judgement judge(std::vector<Failure> failures, std::vector<Failure> running) {
  const auto by_itself = [](const Failure& one) { return !one.stopped_by_us; };
  const bool explain_nothing = std::ranges::any_of(failures, by_itself) &&
                               std::ranges::all_of(failures, [](const Failure& one) {
                                 return one.stopped_by_us || explains_nothing(one);
                               });
  for (auto& one : failures) {
    if (one.stopped_by_us) counts_as_failed(one, explain_nothing);
  }
  for (auto& one : running) {
    one.stopped_at = one.at;  // as if it were stopped now
    if (!counts_as_failed(one, explain_nothing)) continue;
    const auto began = evident_at(one);  // the only moment that is known of its end
    one.wall -= std::exchange(one.at, began) - began;
    failures.push_back(std::move(one));
  }
  std::ranges::stable_sort(failures, {}, [](const Failure& failure) {
    return std::tuple(failure.stopped_by_us, failure.local_rank);
  });
  Judgement out;
  out.failures = std::move(failures);
  const Failure earliest = *std::ranges::min_element(out.failures, {}, &Failure::at);
  const auto root = std::ranges::min_element(out.failures, {}, [&](const Failure& failure) {
    return std::tuple(second_of(failure, failure.at, earliest), failure.stopped_by_us,
                      evident_at(failure));
  });
  out.root = static_cast<std::size_t>(root - out.failures.begin());
  out.culprit = choose_culprit(out, earliest);
  for (std::size_t i = 0; i < out.failures.size(); ++i) {
    const auto& failure = out.failures[i];
    const bool of_others = failure.stopped_by_us || blames_others(failure);
    out.consequence.push_back(i != out.culprit && of_others && !is_crash(failure));
  }
  return out;
}

std::string_view last_words(const Failure& failure) {
  if (failure.exception || !exited(failure)) return {};
  for (auto line = failure.last_lines.rbegin(); line != failure.last_lines.rend(); ++line) {
    const auto words = trim(std::string_view(*line));
    if (!words.empty()) return words;
  }
  return {};
}

std::string what_happened(const Failure& failure) {
  // It may have got to its own end although it was asked by SIGTERM.
  const bool own_end = exited(failure) && failure.at > failure.stopped_at;
  if (failure.cut_short && !own_end) {
    return (failure.exception ? "raised " + failure.exception->text() : "wrote its error file") +
           ", and was stopped before it had ended";
  }
  std::string text = exited(failure) ? fmt::format("ended with exit code {}", failure.status.number)
                                     : fmt::format("was killed by {}", failure.status.text());
  if (!failure.expired_timer.empty()) return text + ": " + failure.expired_timer;
  if (!failure.out_of_memory.empty()) return text + ": " + failure.out_of_memory;
  if (ended_by_watchdog(failure)) {
    return text + " (NCCL's watchdog: other ranks did not answer in time)";
  }
  if (failure.exception) return text + " (" + failure.exception->text() + ")";
  return text;
}

}  // namespace elastrun::workers
