// SPDX-License-Identifier: Apache-2.0
#include "workers/error_file.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"
#include "workers/message.hpp"

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

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

}  // namespace elastrun::workers
