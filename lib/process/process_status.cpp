// SPDX-License-Identifier: Apache-2.0
#include "process/process_status.hpp"

#include "core/read_file.hpp"

#include <charconv>
#include <string_view>

namespace elastrun::process {
namespace {

/// The first number of a line. Names come before it, in which line ends are escaped (proc(5)).
template <class Number>
std::optional<Number> number_of(std::string_view status, std::string_view field, int base) {
  const auto at = status.find(field);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const first = status.data() + at + field.size();
  Number number{};
  const auto [end, error] = std::from_chars(first, status.data() + status.size(), number, base);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

}  // namespace

ProcessStatus read_status(pid_t pid, const std::string& proc) {
  const auto text = read_kernel_file(proc + "/" + std::to_string(pid) + "/status");
  const auto signals = [&text](std::string_view field) {
    return number_of<std::uint64_t>(text, field, 16).value_or(0);
  };
  return {.tracer = number_of<pid_t>(text, "\nTracerPid:\t", 10).value_or(0),
          .user = number_of<uid_t>(text, "\nUid:\t", 10),
          .blocked = signals("\nSigBlk:\t"),
          .ignored = signals("\nSigIgn:\t"),
          .caught = signals("\nSigCgt:\t")};
}

}  // namespace elastrun::process
