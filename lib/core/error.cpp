// SPDX-License-Identifier: Apache-2.0
#include "core/error.hpp"

#include <cerrno>
#include <system_error>

namespace elastrun {

Error Error::context(std::string_view doing) const {
  return {code, std::string(doing) + ": " + text};
}

std::unexpected<Error> fail(Code code, std::string text) {
  return std::unexpected(Error{code, std::move(text)});
}

Error errno_error(Code code, std::string_view what, int number) {
  Error error{code, std::string(what) + ": " + std::generic_category().message(number)};
  // "Too many open files" names neither the limit nor the way to raise it.
  if (number == EMFILE) error.text += " (raise the limit: ulimit -n)";
  return error;
}

}  // namespace elastrun
