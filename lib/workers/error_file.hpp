// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::workers {

/// What a failing worker left in its error.json, as far as it can be understood. The file comes
/// from a dying program: it may be empty, half written, huge or anything else, and none of that
/// hurts (torchrun ends the whole job then).
struct ErrorFile {
  std::string raw;          // the beginning of the file as it is, for people and for telemetry
  bool understood = false;  // JSON in one of the two known forms; otherwise only `raw` is set
  bool plain = false;       // the form whose message is text, not an object
  std::string message;      // "ValueError: boom", one or more lines; may be empty
  std::string callstack;    // Python's traceback; may be empty
  std::optional<std::int64_t> timestamp;  // whole seconds since the epoch, by the worker's clock
  std::optional<WallTime> written;        // when the file was, by the file system's clock

  /// What the failure report shows after `traceback :`. Empty if there is nothing to show.
  const std::string& report_text() const { return callstack.empty() ? message : callstack; }
};

/// The two known forms (torchrun-parity 4.10); anything else gives `understood == false`. Of more
/// than 1 MiB only the message is known, as far as it is in the first 64 KiB. Pure.
ErrorFile parse_error_file(std::string_view text);

/// Nothing if the file is missing. Reads little more than 1 MiB.
std::optional<ErrorFile> read_error_file(const std::string& path);

/// Copies the root cause's file to the launcher's own, with `errorCode` in an object message. Of
/// one above 64 MiB the message alone is written, in torch's form. An existing file is replaced,
/// and the text returned is a warning with its contents, else empty; a device or FIFO is written
/// to. May wait for the file system, as the next one.
Result<std::string> copy_error_file(const std::string& from, const std::string& to, int exit_code);

/// Writes an error of the launcher itself in the form of torch's `@record`.
Result<std::string> write_error_file(const std::string& to, std::string_view message,
                                     WallTime when);

}  // namespace elastrun::workers
