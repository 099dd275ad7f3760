// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string>
#include <string_view>

namespace elastrun {

/// One code per reaction of a caller, not one per place.
enum class Code {
  Usage,       // the user said something that cannot be done: exit 2 (or 1 where torchrun does)
  Spawn,       // a worker could not be started
  Io,          // a file, directory or descriptor refused
  Store,       // the key-value store refused or is away
  Rendezvous,  // the nodes could not agree
  Closed,      // the other side has gone, or the object was closed
  Timeout,     // a bounded wait ended without its event
  Cancelled,   // asked to stop
  Protocol,    // bytes from outside that mean nothing
  Internal,    // our own mistake
};

/// Why something did not work: a code to branch on and one sentence for a person.
struct Error {
  Code code = Code::Internal;
  std::string text;

  /// Puts what we were doing in front: "cannot X: TEXT".
  Error context(std::string_view doing) const;
  bool operator==(const Error&) const = default;
};

template <class T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

/// `return fail(Code::Io, "...")` from any function that returns a Result.
std::unexpected<Error> fail(Code code, std::string text);

/// An error from errno: "WHAT: No such file or directory".
Error errno_error(Code code, std::string_view what, int number);

}  // namespace elastrun
