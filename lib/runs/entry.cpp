// SPDX-License-Identifier: Apache-2.0
#include "runs/entry.hpp"

#include "core/codec.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace elastrun::runs {
namespace {

constexpr std::int64_t kFormat = 1;

constexpr std::string_view kEnding = ".json";

/// Takes a number and the hyphen behind it away.
template <class T>
bool take_number(std::string_view& text, T& number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number <= 0) return false;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  if (!text.starts_with('-')) return false;
  text.remove_prefix(1);
  return true;
}

bool is_hexadecimal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

}  // namespace

void members(Codec& codec, RunEntry& entry) {
  if (!codec.reads()) codec.put("format", kFormat);
  elastrun::members<RunEntry>(codec, entry);
}

std::string encode(const RunEntry& entry) {
  return json::serialize(to_json(entry, Codec::Texts::Whole)) + "\n";
}

Result<RunEntry> decode(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  RunEntry entry;
  // What else is unsound is at its default, and hides no run.
  from_json(*value, entry, Codec::Texts::Whole);
  // Without these a process that got the number later would pass for the agent.
  if (entry.run_id.empty() || entry.pid <= 0 || entry.start_time == 0) {
    return fail(Code::Protocol, "not the entry of a run: run_id, pid or start_time is missing");
  }
  return entry;
}

std::string boot_prefix(std::string_view boot_id) {
  const auto size = std::ranges::find_if_not(boot_id, is_hexadecimal) - boot_id.begin();
  return std::string(boot_id.substr(0, static_cast<std::size_t>(size)));
}

std::string format_file_name(const FileName& name) {
  return fmt::format("{}-{}-{}-{}{}", name.pid, name.start_time, name.pid_namespace, name.boot,
                     kEnding);
}

std::optional<FileName> parse_file_name(std::string_view name) {
  FileName parsed;
  if (!name.ends_with(kEnding)) return {};
  name.remove_suffix(kEnding.size());
  if (!take_number(name, parsed.pid) || !take_number(name, parsed.start_time) ||
      !take_number(name, parsed.pid_namespace)) {
    return {};
  }
  parsed.boot = name;
  if (parsed.boot.empty() || !std::ranges::all_of(parsed.boot, is_hexadecimal)) return {};
  return parsed;
}

}  // namespace elastrun::runs
