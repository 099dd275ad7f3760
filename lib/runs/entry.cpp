// SPDX-License-Identifier: Apache-2.0
#include "runs/entry.hpp"

#include "core/json.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <limits>

namespace elastrun::runs {
namespace {

constexpr std::int64_t kFormat = 1;

WallTime wall_time(const json::value& value, std::string_view name) {
  const json::value* found = find_member(value, name);
  const double seconds = found != nullptr && found->is_number() ? found->to_number<double>() : 0.0;
  // Not a number and what does not fit the clock count as the epoch.
  return WallTime(seconds > 0 && seconds < 9e9 ? from_seconds(seconds) : Duration::zero());
}

int small_number(const json::value& value, std::string_view name, int otherwise) {
  const auto number = member_int_or(value, name, otherwise);
  return number >= 0 && number <= std::numeric_limits<int>::max() ? static_cast<int>(number)
                                                                  : otherwise;
}

json::array write_workers(const std::vector<RunWorker>& workers) {
  json::array list;
  for (const RunWorker& worker : workers) {
    list.emplace_back(json::object{{"rank", worker.rank},
                                   {"local_rank", worker.local_rank},
                                   {"pid", worker.pid},
                                   {"start_time", worker.start_time},
                                   {"directory", valid_utf8(worker.directory)}});
  }
  return list;
}

std::vector<RunWorker> read_workers(const json::value& value) {
  std::vector<RunWorker> workers;
  const json::value* list = find_member(value, "workers");
  if (list == nullptr || !list->is_array()) return workers;
  for (const json::value& one : list->get_array()) {
    workers.push_back({small_number(one, "rank", 0), small_number(one, "local_rank", 0),
                       small_number(one, "pid", 0), member_text_or(one, "directory", ""),
                       static_cast<std::uint64_t>(member_int_or(one, "start_time", 0))});
  }
  return workers;
}

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

// Paths and names may be any bytes, and JSON is UTF-8 (RFC 8259, section 8.1): hence valid_utf8().
std::string encode(const RunEntry& entry) {
  return json::serialize(json::object{{"format", kFormat},
                                      {"run_id", valid_utf8(entry.run_id)},
                                      {"name", valid_utf8(entry.name)},
                                      {"pid", entry.pid},
                                      {"start_time", entry.start_time},
                                      {"pid_namespace", entry.pid_namespace},
                                      {"boot_id", valid_utf8(entry.boot_id)},
                                      {"agent_id", valid_utf8(entry.agent_id)},
                                      {"entry_point", valid_utf8(entry.entry_point)},
                                      {"phase", entry.phase},
                                      {"started", to_seconds(entry.started)},
                                      {"phase_since", to_seconds(entry.phase_since)},
                                      {"min_nodes", entry.min_nodes},
                                      {"max_nodes", entry.max_nodes},
                                      {"rdzv_backend", entry.rdzv_backend},
                                      {"endpoint", valid_utf8(entry.endpoint)},
                                      {"attempt", entry.attempt},
                                      {"max_restarts", entry.max_restarts},
                                      {"restarts_left", entry.restarts_left},
                                      {"run_directory", valid_utf8(entry.run_directory)},
                                      {"channel", valid_utf8(entry.channel)},
                                      {"keeps_output", entry.keeps_output},
                                      {"group_started", to_seconds(entry.group_started)},
                                      {"workers", write_workers(entry.workers)}}) +
         "\n";
}

Result<RunEntry> decode(std::string_view text) {
  const auto value = parse_json(text);
  if (!value) return std::unexpected(value.error());
  RunEntry entry;
  entry.run_id = member_text_or(*value, "run_id", "");
  // An agent of an earlier release, which may still run, writes no name.
  entry.name = member_text_or(*value, "name", entry.run_id);
  entry.pid = small_number(*value, "pid", 0);
  entry.start_time = static_cast<std::uint64_t>(member_int_or(*value, "start_time", 0));
  // Without these a process that got the number later would pass for the agent.
  if (entry.run_id.empty() || entry.pid <= 0 || entry.start_time == 0) {
    return fail(Code::Protocol, "not the entry of a run: run_id, pid or start_time is missing");
  }
  entry.pid_namespace = static_cast<std::uint64_t>(member_int_or(*value, "pid_namespace", 0));
  entry.boot_id = member_text_or(*value, "boot_id", "");
  entry.agent_id = member_text_or(*value, "agent_id", "");
  entry.entry_point = member_text_or(*value, "entry_point", "");
  entry.phase = member_text_or(*value, "phase", "");
  entry.started = wall_time(*value, "started");
  entry.phase_since = wall_time(*value, "phase_since");
  entry.min_nodes = small_number(*value, "min_nodes", 1);
  entry.max_nodes = small_number(*value, "max_nodes", 1);
  entry.rdzv_backend = member_text_or(*value, "rdzv_backend", "");
  entry.endpoint = member_text_or(*value, "endpoint", "");
  entry.attempt = small_number(*value, "attempt", 0);
  entry.max_restarts = small_number(*value, "max_restarts", 0);
  entry.restarts_left = small_number(*value, "restarts_left", 0);
  entry.run_directory = member_text_or(*value, "run_directory", "");
  entry.channel = member_text_or(*value, "channel", "");
  const json::value* keeps = find_member(*value, "keeps_output");
  entry.keeps_output = keeps != nullptr && keeps->is_bool() && keeps->get_bool();
  entry.group_started = wall_time(*value, "group_started");
  entry.workers = read_workers(*value);
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
