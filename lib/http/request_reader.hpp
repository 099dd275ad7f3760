// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::http {

/// One request, as a handler sees it. Everything in it was written by a stranger.
struct Request {
  bool head = false;       // HEAD: the answer goes without its body
  bool keep_alive = true;  // the connection may carry another request
  bool old = false;        // HTTP/1.0, which knows no chunks
  std::string path;        // "/metrics", without the query; not decoded
  std::string query{};     // what follows `?`
  std::string host{};      // as the header says: "localhost:9400"; empty: none
  std::string accept{};    // all headers of that name, joined by a comma
};

/// Why a request is not for any handler. The connection is of no use any more.
struct Refusal {
  int status = 400;
  std::string text;
};

/// Bytes of one connection in, requests out. Knows GET and HEAD without a body. Pure: no socket, no
/// clock. Headers, with the request line, have at most kHeaderLimit bytes, targets kTargetLimit.
class RequestReader {
 public:
  static constexpr std::size_t kHeaderLimit = 8 << 10;
  static constexpr std::size_t kTargetLimit = 2 << 10;

  RequestReader();
  ~RequestReader();
  void add(std::string_view bytes);
  /// The next request, or a refusal, which is the last; nothing: more bytes are needed.
  std::optional<std::expected<Request, Refusal>> next();
  /// True if part of a request has come.
  bool has_part() const;

 private:
  struct Parser;  // Boost.Beast's
  std::expected<Request, Refusal> taken();
  std::unique_ptr<Parser> parser_;
  std::string bytes_;  // not yet parsed
  bool refused_ = false;
};

/// True if no browser that was led here by a foreign name (DNS rebinding) could have sent this
/// `Host`: numeric addresses, localhost and names below it, and no name at all.
bool is_local_host(std::string_view host);

}  // namespace elastrun::http
