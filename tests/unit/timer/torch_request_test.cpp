// SPDX-License-Identifier: Apache-2.0
#include "timer/request_pipe.hpp"

#include <doctest/doctest.h>
#include <limits>
#include <string>

using namespace elastrun;
using namespace elastrun::timer;
using namespace std::chrono_literals;

namespace {

const TimePoint kNow(100s);
const WallTime kWall(1'763'690'000s);

Result<Request> parse(std::string_view line) {
  return parse_torch_request(line, kNow, kWall);
}

// As torch 2.13 writes it.
const std::string kAcquire =
    R"({"version": 1, "pid": 12345, "scope_id": "train.py#128", "expiration_time": 1763690002.5, )"
    R"("signal": 9})";
const std::string kRelease =
    R"({"version": 1, "pid": 12345, "scope_id": "train.py#128", "expiration_time": -1, )"
    R"("signal": 0})";

std::string with(std::string text, std::string_view what, std::string_view by) {
  return text.replace(text.find(what), what.size(), by);
}

}  // namespace

TEST_CASE("torch request: an acquisition gets a deadline of the monotonic clock") {
  const auto request = parse(kAcquire);
  REQUIRE(request);
  CHECK(request->worker == 12345);
  CHECK(request->scope == "train.py#128");
  CHECK(request->expiry == kNow + 2500ms);
  CHECK(request->armed == kNow);
  CHECK(request->signal == 9);
}

TEST_CASE("torch request: a negative expiration is a release") {
  const auto request = parse(kRelease);
  REQUIRE(request);
  CHECK_FALSE(request->expiry);
  CHECK(request->signal == 0);
}

TEST_CASE("torch request: a deadline in the past has expired now; none is out of range") {
  CHECK(parse(with(kAcquire, "1763690002.5", "5"))->expiry == kNow);
  CHECK(parse(with(kAcquire, "1763690002.5", "0.0"))->expiry == kNow);
  CHECK(parse(with(kAcquire, "1763690002.5", "1e300"))->expiry > kNow + 24h * 3600);
  CHECK(parse(with(kAcquire, "1763690002.5", "9223372036854775807"))->expiry > kNow);
}

TEST_CASE("torch request: escaped text, other members and a negative signal are understood") {
  const auto request =
      parse(R"({"pid": 1, "scope_id": "\u00e9\"", "expiration_time": 1763690001, "signal": -5,)"
            R"( "more": [1]})");
  REQUIRE(request);
  CHECK(request->scope == "\u00e9\"");
  CHECK(request->signal == 0);
}

TEST_CASE("torch request: what is no request is refused") {
  for (const char* line :
       {"", "{}", "[]", "null", "7", "nonsense", "\xff\xfe", "{\"pid\": 1}",
        R"({"pid": 0, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": -1, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 4294967297, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 1.5, "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": "1", "scope_id": "a", "expiration_time": 1, "signal": 9})",
        R"({"pid": 1, "scope_id": 7, "expiration_time": 1, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": "1", "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": NaN, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": null, "signal": 9})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": 1, "signal": 65})",
        R"({"pid": 1, "scope_id": "a", "expiration_time": 1})"}) {
    CAPTURE(line);
    REQUIRE_FALSE(parse(line));
    CHECK(parse(line).error().code == Code::Protocol);
  }
}

TEST_CASE("torch request: a line cut at any length is refused, and costs nobody else's") {
  for (std::size_t length = 1; length < kAcquire.size(); ++length) {
    CAPTURE(length);
    const auto half = kAcquire.substr(0, length);
    CHECK_FALSE(parse(half));
    // Its writer has died; the next one's bytes follow at once.
    const auto other = parse(half + with(kAcquire, "12345", "777"));
    REQUIRE(other);
    CHECK(other->worker == 777);
  }
}

TEST_CASE("request lines: pieces of any size give the same lines") {
  const std::string text = kAcquire + "\n\nhalf\n" + kRelease + "\nheld";
  for (std::size_t size = 1; size < text.size(); ++size) {
    RequestLines lines;
    std::vector<std::string> found;
    for (std::size_t at = 0; at < text.size(); at += size) {
      lines.feed(std::string_view(text).substr(at, size),
                 [&](std::string_view line) { found.emplace_back(line); });
    }
    CHECK(found == std::vector<std::string>{kAcquire, "", "half", kRelease});
  }
}

TEST_CASE("request lines: of one that is too long only the beginning is kept") {
  RequestLines lines;
  std::vector<std::string> found;
  const auto take = [&](std::string_view line) { found.emplace_back(line); };
  lines.feed(std::string(kLongestLine, 'x') + "\n", take);
  for (int i = 0; i < 9; ++i) lines.feed(std::string(1 << 20, 'y'), take);
  lines.feed("z\nnext\n", take);
  CHECK(found == std::vector<std::string>{std::string(kLongestLine, 'x'),
                                          std::string(kLongestLine, 'y'), "next"});
}
