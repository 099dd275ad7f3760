// SPDX-License-Identifier: Apache-2.0
#include "vectors/recording.hpp"

#include "core/json.hpp"
#include "support/hex.hpp"

#include <fmt/format.h>
#include <fstream>
#include <map>
#include <sstream>

namespace elastrun::vectors {
namespace {

std::unexpected<Error> bad(const std::string& entry, const std::string& what) {
  return fail(Code::Protocol, fmt::format("conversation '{}': {}", entry, what));
}

Result<std::string> text_of(const json::object& object, const char* name,
                            const std::string& entry) {
  const auto* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) {
    return bad(entry, fmt::format("'{}' is missing or no string", name));
  }
  return std::string(value->get_string());
}

Result<std::string> bytes_of(const json::object& object, const char* name,
                             const std::string& entry) {
  const auto digits = text_of(object, name, entry);
  if (!digits) return std::unexpected(digits.error());
  auto bytes = test::parse_hex(*digits);
  if (!bytes) return bad(entry, fmt::format("'{}' is no even run of hexadecimal digits", name));
  return std::move(*bytes);
}

Result<bool> flag_of(const json::object& object, const char* name, const std::string& entry) {
  const auto* value = object.if_contains(name);
  if (value == nullptr) return false;
  if (!value->is_bool()) return bad(entry, fmt::format("'{}' is neither true nor false", name));
  return value->get_bool();
}

Result<Step> read_step(const json::value& value, const std::string& entry) {
  static const std::map<std::string, Step::Kind> kKinds = {
      {"send", Step::Kind::Send},
      {"recv", Step::Kind::Receive},
      {"recv_eof", Step::Kind::End},
      {"close", Step::Kind::Close},
      {"shutdown_write", Step::Kind::ShutdownWrite}};
  if (!value.is_object()) return bad(entry, "a step is no object");
  const auto& object = value.get_object();
  const auto connection = text_of(object, "conn", entry);
  if (!connection) return std::unexpected(connection.error());
  const auto operation = text_of(object, "op", entry);
  if (!operation) return std::unexpected(operation.error());
  const auto kind = kKinds.find(*operation);
  if (kind == kKinds.end()) return bad(entry, "a step has the unknown op '" + *operation + "'");
  if (connection->size() != 1) return bad(entry, "'conn' of a step is not one letter");
  Step step{kind->second, connection->front(), {}};
  if (step.kind != Step::Kind::Send && step.kind != Step::Kind::Receive) return step;
  auto bytes = bytes_of(object, "hex", entry);
  if (!bytes) return std::unexpected(bytes.error());
  if (bytes->empty()) return bad(entry, "a step sends or receives nothing");
  step.bytes = std::move(*bytes);
  return step;
}

/// The whole traffic is in the file twice, so that a damaged file does not pass for a recording.
Status check_sums(const json::object& object, const Recording& recording) {
  std::string sent, received;
  for (const auto& step : recording.steps) {
    if (step.connection != 'A') continue;
    if (step.kind == Step::Kind::Send) sent += step.bytes;
    if (step.kind == Step::Kind::Receive) received += step.bytes;
  }
  const auto all_sent = bytes_of(object, "client_to_server_hex", recording.name);
  if (!all_sent) return std::unexpected(all_sent.error());
  const auto all_received = bytes_of(object, "server_to_client_hex", recording.name);
  if (!all_received) return std::unexpected(all_received.error());
  if (sent != *all_sent) {
    return bad(recording.name, "its steps do not send what client_to_server_hex says");
  }
  if (received != *all_received) {
    return bad(recording.name, "its steps do not receive what server_to_client_hex says");
  }
  return {};
}

Result<Recording> read_recording(const json::value& value, std::size_t index) {
  const std::string place = fmt::format("number {}", index + 1);
  if (!value.is_object()) return bad(place, "it is no object");
  const auto& object = value.get_object();
  const auto name = text_of(object, "name", place);
  if (!name) return std::unexpected(name.error());
  Recording recording{.name = *name, .steps = {}};
  for (auto [flag, field] : {std::pair{"closed_by_server", &Recording::closed_by_server},
                             {"defect", &Recording::defect},
                             {"unordered_tail", &Recording::unordered_tail}}) {
    const auto set = flag_of(object, flag, *name);
    if (!set) return std::unexpected(set.error());
    recording.*field = *set;
  }
  const auto* steps = object.if_contains("steps");
  if (steps == nullptr || !steps->is_array()) return bad(*name, "'steps' is missing or no list");
  for (const auto& one : steps->get_array()) {
    auto step = read_step(one, *name);
    if (!step) return std::unexpected(step.error());
    recording.steps.push_back(std::move(*step));
  }
  if (recording.steps.empty()) return bad(*name, "it has no steps");
  const auto checked = check_sums(object, recording);
  if (!checked) return std::unexpected(checked.error());
  return recording;
}

Result<json::value> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(errno_error(Code::Io, "cannot read " + path, errno));
  std::stringstream text;
  text << file.rdbuf();
  auto parsed = parse_json(text.str());
  if (!parsed) return std::unexpected(parsed.error().context(path + " is no JSON"));
  return parsed;
}

}  // namespace

Result<std::vector<Recording>> read_recordings(const std::string& path) {
  auto whole = read_file(path);
  if (!whole) return std::unexpected(whole.error());
  const auto* list =
      whole->is_object() ? whole->get_object().if_contains("conversations") : nullptr;
  if (list == nullptr || !list->is_array()) {
    return fail(Code::Protocol, path +
                                    " is no file of recorded conversations: an object with a "
                                    "list 'conversations' was expected");
  }
  std::vector<Recording> recordings;
  for (const auto& value : list->get_array()) {
    auto recording = read_recording(value, recordings.size());
    if (!recording) return std::unexpected(recording.error().context(path));
    recordings.push_back(std::move(*recording));
  }
  if (recordings.empty()) return fail(Code::Protocol, path + " has no conversations");
  return recordings;
}

}  // namespace elastrun::vectors
