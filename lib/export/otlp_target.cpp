// SPDX-License-Identifier: Apache-2.0
#include "export/otlp_target.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace elastrun::exporter {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    out += low >= 0 ? static_cast<char>(high * 16 + low) : text[i];
    if (low >= 0) i += 2;
  }
  return out;
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace

Result<OtlpTarget> parse_otlp_url(std::string_view url) {
  const auto wrong = [url](std::string_view why) {
    return fail(Code::Usage, fmt::format("'{}' is not the URL of a collector: {}; expected "
                                         "http://HOST[:PORT][/PATH]",
                                         url, why));
  };
  OtlpTarget target;
  target.tls = url.starts_with("https://");
  if (!target.tls && !url.starts_with("http://"))
    return wrong("it begins with http:// or https://");
  const auto rest = url.substr(target.tls ? 8 : 7);
  const auto slash = rest.find('/');
  const auto authority = rest.substr(0, slash);
  if (authority.empty()) return wrong("it names no host");
  if (authority.find('@') != authority.npos) {
    // Command lines are visible to all users of the machine (ps(1)).
    return wrong("a password does not belong there (see OTEL_EXPORTER_OTLP_HEADERS)");
  }
  const auto path = slash == rest.npos ? std::string_view() : rest.substr(slash);
  if (path.find_first_of("?# ") != path.npos || has_control(url)) {
    return wrong("its path has a character that cannot be in one");
  }
  const auto endpoint = net::parse_endpoint(authority, 4318);
  if (!endpoint) return wrong(endpoint.error().text);
  if (endpoint->port == 0) return wrong("port 0");
  target.endpoint = *endpoint;
  target.path = path;
  // The signal's path comes behind ("/v1/traces"), and "//v1" is another path to many servers.
  while (target.path.ends_with('/')) target.path.pop_back();
  return target;
}

std::vector<std::pair<std::string, std::string>> parse_otlp_headers(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> headers;
  // As W3C's Baggage writes them, which is what OpenTelemetry has for this variable: values are
  // percent-encoded.
  for (const auto& pair : split(text, ',')) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos) continue;
    const std::string name(trim(std::string_view(pair).substr(0, equals)));
    auto value = percent_decoded(trim(std::string_view(pair).substr(equals + 1)));
    // A line break in a value would begin another header.
    if (name.empty() || has_control(value) || name.find_first_of(" \t:") != name.npos) continue;
    headers.emplace_back(name, std::move(value));
  }
  return headers;
}

}  // namespace elastrun::exporter
