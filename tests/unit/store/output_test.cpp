// SPDX-License-Identifier: Apache-2.0
#include "store/conversation.hpp"

#include <array>
#include <doctest/doctest.h>

using namespace elastrun::store;

static std::string gathered(const Output& output, std::span<iovec> parts) {
  std::string bytes;
  for (const auto& part : parts.first(output.gather(parts))) {
    bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
  }
  return bytes;
}

/// Own bytes and shared values in all neighbourhoods.
static std::string fill(Output& output) {
  const std::string large(kShareFrom, 'L');
  const std::string larger(kShareFrom + 3, 'M');
  const std::string sizes[] = {std::string("\0\x10\0\0\0\0\0\0", 8),
                               std::string("\3\x10\0\0\0\0\0\0", 8)};
  output.put("ab");
  output.put_value(Value(large));
  output.put_value(Value(larger));
  output.put('c');
  output.put_value(Value("small"));
  output.put_value(Value(large));
  return "ab" + sizes[0] + large + sizes[1] + larger + "c" + std::string("\5\0\0\0\0\0\0\0", 8) +
         "small" + sizes[0] + large;
}

TEST_CASE("output: all bytes come out in order, however few are taken at a time") {
  for (const std::size_t step : {1u, 7u, 4096u, 5000u, 100000u}) {
    for (const std::size_t parts_at_once : {2u, 3u, 64u}) {
      CAPTURE(step);
      CAPTURE(parts_at_once);
      Output output;
      const std::string all = fill(output);
      CHECK(output.size() == all.size());
      std::vector<iovec> parts(parts_at_once);
      std::string taken;
      while (!output.empty()) {
        const auto next = gathered(output, parts).substr(0, step);
        REQUIRE(!next.empty());
        output.sent(next.size());
        taken += next;
      }
      CHECK(taken == all);
      CHECK(output.size() == 0);
      CHECK(output.own_size() == 0);
    }
  }
}

TEST_CASE("output: a large value counts, but not as memory of this peer") {
  Output output;
  const Value value(std::string(1 << 20, 'x'));
  for (int i = 0; i < 10; ++i) output.put_value(value);
  CHECK(output.size() == 10 * ((1u << 20) + 8));
  CHECK(output.own_size() == 80);
  CHECK(value.shared().use_count() == 12);
  output.take();
  CHECK(value.shared().use_count() == 2);
}

TEST_CASE("output: what was sent is given back, though there is always something left to send") {
  Output output;
  const std::string large(kShareFrom, 'L');
  std::string expected, taken;
  for (int i = 0; i < 20'000; ++i) {
    output.put_text(std::string(400, static_cast<char>('a' + i % 26)));
    output.put_value(Value(large));
    if (i < 10) continue;
    CHECK(output.size() >= 10 * 400);
    std::vector<iovec> parts(4);
    taken = gathered(output, parts);
    output.sent(std::min<std::size_t>(taken.size(), 400 + 8 + 8 + kShareFrom));
    REQUIRE(!output.empty());
    REQUIRE(output.held() < 600'000);
  }
}

TEST_CASE("output: a peer that has everything keeps no buffer") {
  Output output;
  output.put_text(std::string(1 << 20, 't'));
  for (int i = 0; i < 100; ++i) output.put_value(Value(std::string(kShareFrom, 'L')));
  output.sent(output.size());
  CHECK(output.empty());
  CHECK(output.held() < 1024);
}
