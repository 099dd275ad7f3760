// SPDX-License-Identifier: Apache-2.0
// The only file that includes Boost.Beast's server side.
#include "core/text.hpp"
#include "http/http_server.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::http {

namespace beast_http = boost::beast::http;

namespace {

std::unexpected<Answer> refusal_with(int status, std::string_view text) {
  Answer answer{.status = status, .body = fmt::format("{}\n", text)};
  if (status == 405) answer.headers.emplace_back("Allow", "GET, HEAD");
  return std::unexpected(std::move(answer));
}

template <class Message>
std::string all_of(const Message& message, beast_http::field name) {
  std::string all;
  const auto range = message.equal_range(name);
  for (auto one = range.first; one != range.second; ++one) {
    // Several fields of one name mean the same as one with their values and commas between (RFC
    // 9110, 5.3).
    if (!all.empty()) all += ',';
    all.append(one->value().data(), one->value().size());
  }
  return all;
}

using Parser = beast_http::request_parser<beast_http::empty_body>;

std::expected<Request, Answer> request_of(const Parser& parser) {
  const auto& message = parser.get();
  const auto method = message.method();
  if (method != beast_http::verb::get && method != beast_http::verb::head) {
    return refusal_with(405, "only GET and HEAD are known here");
  }
  // A body that is not read would be taken for the next request: that is request smuggling. So such
  // a connection ends with the refusal.
  if (!parser.is_done()) return refusal_with(413, "a request has no body here");
  const std::string_view target(message.target().data(), message.target().size());
  if (target.size() > kTargetLimit) return refusal_with(414, "the target is too long");
  if (!target.starts_with('/')) return refusal_with(400, "the target does not begin with /");
  const auto hosts = message.count(beast_http::field::host);
  const bool old = message.version() < 11;
  // RFC 9112, 3.2 asks for 400 in both cases: two of them leave open which site is meant.
  if (hosts > 1 || (hosts == 0 && !old)) return refusal_with(400, "one Host header is needed");
  Request request;
  request.head = method == beast_http::verb::head;
  request.keep_alive = parser.keep_alive();
  request.old = old;
  request.path = target.substr(0, target.find('?'));
  if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
  request.host = all_of(message, beast_http::field::host);
  request.accept = all_of(message, beast_http::field::accept);
  return request;
}

}  // namespace

std::optional<std::expected<Request, Answer>> take_request(std::string& bytes) {
  using beast_http::error;
  if (bytes.empty()) return std::nullopt;
  // From the start each time: a head has few bytes, and as a rule comes at once.
  Parser parser;
  parser.header_limit(kHeaderLimit);
  boost::system::error_code failed;
  const auto used = parser.put(boost::asio::buffer(bytes), failed);
  if (failed == error::need_more && bytes.size() < kHeaderLimit) return std::nullopt;
  bytes.erase(0, used);
  if (failed == error::need_more || failed == error::header_limit) {
    return refusal_with(431, fmt::format("headers above {} bytes", kHeaderLimit));
  }
  if (failed == error::unexpected_body) return refusal_with(413, "a request has no body here");
  return failed ? refusal_with(400, failed.message()) : request_of(parser);
}

bool is_local_host(std::string_view host) {
  // An address in brackets: no name server is asked for it, so it leads where it says.
  if (host.starts_with('[')) {
    const auto end = std::min(host.find(']'), host.size());
    const auto rest = host.substr(end);  // with a port, at most: "[::1].evil.example" is a name
    return (rest == "]" || rest.starts_with("]:")) &&
           host.find_first_not_of("[0123456789abcdefABCDEF:.") == end;
  }
  std::string name = to_lower(host.substr(0, host.find(':')));
  // With the dot of the root, which is the same name.
  if (name.ends_with('.')) name.pop_back();
  if (name.empty() || name == "localhost" || name.ends_with(".localhost")) return true;
  // As a name, each of its labels could be a number; but then no resolver is asked for it.
  const auto labels = split(name, '.');
  return labels.size() == 4 && std::ranges::all_of(labels, [](const std::string& label) {
           return !label.empty() && label.size() <= 3 &&
                  label.find_first_not_of("0123456789") == std::string::npos;
         });
}

}  // namespace elastrun::http
