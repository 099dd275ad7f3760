// SPDX-License-Identifier: Apache-2.0
#include "core/json.hpp"
#include "core/text.hpp"
#include "net/frame.hpp"
#include "rendezvous/election/make_elected.hpp"

#include <fmt/format.h>

namespace elastrun::rendezvous::etcd {
namespace {

std::unexpected<Error> not_understood(std::string_view what) {
  return fail(Code::Protocol, fmt::format("etcd's answer is not understood: {}", what));
}

// 64-bit integers are texts in this gateway; smaller ones, and some versions', are numbers.
std::int64_t number(const json::value& value, std::string_view name) {
  const json::value* found = find_member(value, name);
  if (found == nullptr) return 0;
  if (found->is_string()) return parse_int(std::string_view(found->get_string())).value_or(0);
  return member_int_or(value, name, 0);
}

Result<std::optional<Entry>> first_entry(const json::value& range) {
  const json::value* entries = find_member(range, "kvs");
  if (entries == nullptr) return std::nullopt;
  if (!entries->is_array()) return not_understood("\"kvs\" is not a list");
  if (entries->get_array().empty()) return std::nullopt;
  // The range is one key, so there is one entry at most.
  const json::value& first = entries->get_array().front();
  const auto value = net::decode_base64(member_text_or(first, "value", ""));
  if (!value) return not_understood("a value is not base64");
  Entry entry{*value, number(first, "create_revision")};
  if (entry.create_revision <= 0) return not_understood("an entry without its create_revision");
  return entry;
}

bool has_succeeded(const json::value& transaction) {
  const json::value* succeeded = find_member(transaction, "succeeded");
  return succeeded != nullptr && succeeded->is_bool() && succeeded->get_bool();
}

const json::value* first_response(const json::value& answer) {
  const json::value* responses = find_member(answer, "responses");
  if (responses == nullptr || !responses->is_array() || responses->get_array().empty()) {
    return nullptr;
  }
  return find_member(responses->get_array().front(), "response_range");
}

// The answers of a keep-alive, a stream of them, are wrapped, and their errors too.
Result<json::value> unwrap(std::string_view text) {
  auto value = parse_json(text);
  if (!value) return std::unexpected(value.error().context("etcd's answer"));
  if (!value->is_object()) return not_understood("it is not an object");
  if (const json::value* error = find_member(*value, "error")) {
    // A text, or in a stream an object that has one.
    const std::string said = error->is_string() ? std::string(error->get_string())
                                                : member_text_or(*error, "message", "no reason");
    return fail(Code::Io, fmt::format("etcd: {}", said));
  }
  // Each answer of a stream is within it.
  if (const json::value* result = find_member(*value, "result")) return json::value(*result);
  return value;
}

}  // namespace

Result<std::optional<Entry>> read_range(std::string_view text) {
  const auto answer = unwrap(text);
  if (!answer) return std::unexpected(answer.error());
  return first_entry(*answer);
}

Result<std::optional<Entry>> read_create(std::string_view text, std::string_view value) {
  const auto answer = unwrap(text);
  if (!answer) return std::unexpected(answer.error());
  if (has_succeeded(*answer)) {
    // etcd does not repeat what it has put: the key was created in the revision of this
    // transaction.
    const json::value* header = find_member(*answer, "header");
    const std::int64_t revision = header == nullptr ? 0 : number(*header, "revision");
    if (revision <= 0) return not_understood("no revision");
    return Entry{std::string(value), revision};
  }
  const json::value* range = first_response(*answer);
  if (range == nullptr) return not_understood("a transaction without its answer");
  return first_entry(*range);
}

Result<bool> read_success(std::string_view text) {
  const auto answer = unwrap(text);
  if (!answer) return std::unexpected(answer.error());
  return has_succeeded(*answer);
}

Result<LeaseAnswer> read_lease(std::string_view text) {
  const auto answer = unwrap(text);
  if (!answer) return std::unexpected(answer.error());
  return LeaseAnswer{number(*answer, "ID"), number(*answer, "TTL")};
}

Result<std::string> read_token(std::string_view text) {
  const auto answer = unwrap(text);
  if (!answer) return std::unexpected(answer.error());
  std::string token = member_text_or(*answer, "token", "");
  if (token.empty()) return not_understood("no token");
  return token;
}

Refused read_refusal(int status, std::string_view text) {
  const auto parsed = parse_json(text);
  std::string said = parsed ? member_text_or(*parsed, "message", "") : "";
  if (said.empty() && parsed) said = member_text_or(*parsed, "error", "");
  if (said.empty()) said = fmt::format("HTTP status {}", status);
  const std::int64_t code = parsed ? member_int_or(*parsed, "code", 0) : 0;
  // Codes of gRPC: 14 unavailable (no leader, stopping), 16 unauthenticated, 7 permission denied,
  // 3 invalid argument, which is also what a wrong password and a token of before a restart give.
  Refused refused{{Code::Io, fmt::format("etcd: {}", printable(said))}};
  // 5 not found: a lease that has lapsed; a server without this gateway has no code for its 404.
  const auto says = [&said](std::string_view words) {
    return said.find(words) != std::string::npos;
  };
  // Users or roles were changed since the login, or a member that was elected or restarted does not
  // know the token: members keep those to themselves.
  refused.bad_token = code == 16 || says("invalid auth token") ||
                      says("revision of auth store is old") || says("user name is empty");
  refused.unavailable = code == 14 || status == 503 || status == 502;
  if (code == 7 || code == 3 || (status == 404 && code != 5)) refused.error.code = Code::Usage;
  if (refused.bad_token) refused.error.code = Code::Io;
  return refused;
}

}  // namespace elastrun::rendezvous::etcd
