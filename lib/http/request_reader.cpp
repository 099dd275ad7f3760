// SPDX-License-Identifier: Apache-2.0
// The only file that includes Boost.Beast's server side.
#include "http/request_reader.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::http {

namespace beast_http = boost::beast::http;

struct RequestReader::Parser : beast_http::request_parser<beast_http::empty_body> {};

namespace {

Refusal refusal_of(const boost::system::error_code& failed) {
  using beast_http::error;
  if (failed == error::header_limit) {
    return {431, fmt::format("headers above {} bytes", RequestReader::kHeaderLimit)};
  }
  if (failed == error::unexpected_body) return {413, "a request has no body here"};
  return {400, failed.message()};
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

}  // namespace

RequestReader::RequestReader() : parser_(std::make_unique<Parser>()) {
  parser_->header_limit(kHeaderLimit);
}

RequestReader::~RequestReader() = default;

void RequestReader::add(std::string_view bytes) {
  if (!refused_) bytes_ += bytes;
}

bool RequestReader::has_part() const {
  return !bytes_.empty() || parser_->got_some();
}

std::optional<std::expected<Request, Refusal>> RequestReader::next() {
  if (refused_ || bytes_.empty()) return std::nullopt;
  boost::system::error_code error;
  const auto used = parser_->put(boost::asio::buffer(bytes_), error);
  bytes_.erase(0, used);
  if (error == beast_http::error::need_more && bytes_.size() < kHeaderLimit) return std::nullopt;
  if (error == beast_http::error::need_more) error = beast_http::error::header_limit;
  auto result = error ? std::unexpected(refusal_of(error)) : taken();
  // After a refusal nothing more is read: where the bad request ends is not known.
  refused_ = !result;
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(kHeaderLimit);
  return result;
}

std::expected<Request, Refusal> RequestReader::taken() {
  const auto& message = parser_->get();
  const auto refuse = [](int status, std::string text) {
    return std::unexpected(Refusal{status, std::move(text)});
  };
  const auto method = message.method();
  if (method != beast_http::verb::get && method != beast_http::verb::head) {
    return refuse(405, "only GET and HEAD are known here");
  }
  // A body that is not read would be taken for the next request: that is request smuggling. So such
  // a connection ends with the refusal.
  if (!parser_->is_done()) return refuse(413, "a request has no body here");
  const std::string_view target(message.target().data(), message.target().size());
  if (target.size() > kTargetLimit) return refuse(414, "the target is too long");
  if (!target.starts_with('/')) return refuse(400, "the target does not begin with /");
  const auto hosts = message.count(beast_http::field::host);
  const bool old = message.version() < 11;
  // RFC 9112, 3.2 asks for 400 in both cases: two of them leave open which site is meant.
  if (hosts > 1 || (hosts == 0 && !old)) return refuse(400, "one Host header is needed");
  Request request;
  request.head = method == beast_http::verb::head;
  request.keep_alive = parser_->keep_alive();
  request.old = old;
  request.path = target.substr(0, target.find('?'));
  if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
  request.host = all_of(message, beast_http::field::host);
  request.accept = all_of(message, beast_http::field::accept);
  return request;
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
