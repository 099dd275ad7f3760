// SPDX-License-Identifier: Apache-2.0
#include "store/tcp_protocol.hpp"

#include "net/frame.hpp"

#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::store;
using Texts = std::vector<std::string_view>;

static std::string bytes_of(const Request& request, Protocol protocol = Protocol::Current) {
  std::string out;
  append_request(out, request, protocol);
  return out;
}

/// One request of each kind, with everything in it that its kind has.
static std::vector<Request> all_requests(Protocol protocol) {
  static const Texts kTexts = {"/a", "", "/b", "value"};
  std::vector<Request> requests;
  for (int number = 0; number < 256; ++number) {
    const auto query = query_of(protocol, static_cast<std::uint8_t>(number));
    if (!query) continue;
    Request request;
    request.query = *query;
    for (const Field field : shape_of(*query).fields) {
      if (field == Field::Key) request.key = "/key";
      if (field == Field::Bytes) request.value = "value";
      if (field == Field::Number) request.number = -3;
      if (field == Field::Nonce) request.number = 4242;
      if (field == Field::Keys || field == Field::Pairs) request.texts = kTexts;
    }
    if (query == Query::CompareSet) request.desired = "desired";
    requests.push_back(request);
  }
  return requests;
}

TEST_CASE("protocol: every request of both protocols is read as it was written") {
  for (const auto protocol : {Protocol::Current, Protocol::Old}) {
    const auto requests = all_requests(protocol);
    CHECK(requests.size() == (protocol == Protocol::Current ? 18 : 9));
    for (const auto& request : requests) {
      const auto message = bytes_of(request, protocol);
      Scanner scanner(protocol);
      REQUIRE(scanner.scan(message) == true);
      CHECK(scanner.size() == message.size());
      Texts texts;
      const auto read = read_request(protocol, message, texts);
      CHECK(read.query == request.query);
      CHECK(read.key == request.key);
      CHECK(read.value == request.value);
      CHECK(read.desired == request.desired);
      CHECK(read.number == request.number);
      CHECK(std::equal(read.texts.begin(), read.texts.end(), request.texts.begin(),
                       request.texts.end()));
    }
  }
}

TEST_CASE("protocol: a request cut at any length is incomplete, bytes behind it are not its own") {
  for (const auto protocol : {Protocol::Current, Protocol::Old}) {
    for (const auto& request : all_requests(protocol)) {
      const auto message = bytes_of(request, protocol);
      Scanner growing(protocol);
      for (std::size_t size = 0; size < message.size(); ++size) {
        Scanner fresh(protocol);
        REQUIRE(fresh.scan(std::string_view(message).substr(0, size)) == false);
        REQUIRE(growing.scan(std::string_view(message).substr(0, size)) == false);
      }
      CHECK(growing.scan(message + "more") == true);
      CHECK(growing.size() == message.size());
    }
  }
}
