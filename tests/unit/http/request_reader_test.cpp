// SPDX-License-Identifier: Apache-2.0
#include "http/http_server.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

using namespace elastrun;
using http::take_request;

namespace {

constexpr std::string_view kGet =
    "GET /metrics?name=a%20b HTTP/1.1\r\nHost: localhost:9400\r\nAccept: text/plain\r\n"
    "Accept: application/openmetrics-text;version=1.0.0\r\n\r\n";

/// What becomes of all bytes: the status of the refusal, 200 for a request, 0 if more is needed.
int status_of(std::string bytes) {
  const auto next = take_request(bytes);
  if (!next) return 0;
  return *next ? 200 : next->error().status;
}

std::string with_header(const std::string& header) {
  return "GET / HTTP/1.1\r\nHost: a\r\n" + header + "\r\n\r\n";
}

}  // namespace

TEST_CASE("http request: path, query, host and all accepted types, however the bytes are cut") {
  for (std::size_t cut = 0; cut < kGet.size(); ++cut) {
    std::string bytes(kGet.substr(0, cut));
    REQUIRE_MESSAGE(!take_request(bytes), cut);
    bytes += kGet.substr(cut);
    const auto next = take_request(bytes).value();
    REQUIRE_MESSAGE(next.has_value(), cut);
    CHECK(next->path == "/metrics");
    CHECK(next->query == "name=a%20b");
    CHECK(next->host == "localhost:9400");
    CHECK(next->accept == "text/plain,application/openmetrics-text;version=1.0.0");
    CHECK(next->keep_alive);
    CHECK_FALSE(next->head);
    CHECK(bytes.empty());
  }
}

TEST_CASE("http request: requests in one packet come one by one") {
  std::string bytes = "GET /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /b HTTP/1.0\r\n\r\n";
  CHECK(take_request(bytes).value().value().path == "/a");
  const auto second = take_request(bytes).value().value();
  CHECK(second.path == "/b");
  CHECK(second.head);
  CHECK(second.old);
  CHECK_FALSE(second.keep_alive);
  CHECK_FALSE(take_request(bytes));
}

TEST_CASE("http request: what is not for us is refused with a status that says why") {
  CHECK(status_of("POST / HTTP/1.1\r\nHost: a\r\n\r\n") == 405);
  CHECK(status_of("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc") == 405);
  CHECK(status_of("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n") == 405);
  CHECK(status_of("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n") == 405);
  CHECK(status_of(with_header("Content-Length: 5")) == 413);
  CHECK(status_of(with_header("Transfer-Encoding: chunked")) == 413);
  CHECK(status_of("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n") == 400);
  CHECK(status_of("GET / HTTP/1.1\r\n\r\n") == 400);  // no Host
  CHECK(status_of(with_header("Host: b")) == 400);    // two of them
  CHECK(status_of("GET / HTTP/2.0\r\nHost: a\r\n\r\n") == 400);
  CHECK(status_of(std::string("\x16\x03\x01\x02\x00\x01\x00", 7)) == 400);  // TLS
  CHECK(status_of("GET /" + std::string(3000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n") == 414);
  CHECK(status_of(with_header("X: " + std::string(9000, 'a'))) == 431);
  CHECK(status_of("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(9000, 'a')) == 431);
  CHECK(status_of("GET /" + std::string(20000, 'a')) == 431);
  std::string many = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 2000; ++i) many += "a: b\r\n";
  CHECK(status_of(many + "\r\n") == 431);
}

TEST_CASE("http request: a page elsewhere cannot be led here by its own name") {
  for (const char* host : {"", "localhost", "LOCALHOST:80", "localhost.:1", "a.localhost",
                           "127.0.0.1", "127.0.0.1:9400", "10.0.0.7:1", "[::1]:9400", "[::1]"}) {
    CHECK_MESSAGE(http::is_local_host(host), host);
  }
  for (const char* host :
       {"evil.example", "evil.example:9400", "localhost.evil.example", "[evil", "[evil]:1",
        "127.0.0.1.evil.example", "notlocalhost", "1.2.3.4.5", "1.2.3.x", "[::1].evil.example",
        "[::1].evil.example:9400", "[::1]evil", "[::1"}) {
    CHECK_FALSE_MESSAGE(http::is_local_host(host), host);
  }
}
