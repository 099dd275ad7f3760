// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/remote_session.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <string>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;

namespace {

std::vector<boost::asio::ip::address> rails(std::size_t count) {
  std::vector<boost::asio::ip::address> all{boost::asio::ip::make_address("127.0.0.1"),
                                            boost::asio::ip::make_address("fe80::1")};
  for (std::size_t i = 0; i < count; ++i) {
    const auto text = fmt::format("fd00:1111:2222:3333:4444:5555:6666:{:x}", 0x1000 + i);
    all.push_back(boost::asio::ip::make_address(text));
  }
  return all;
}

}  // namespace

TEST_CASE("other addresses: a machine of many rails tells all that others may see") {
  const auto all = rails(40);
  const auto found = alternate_addresses(all[2].to_string(), all);
  CHECK(found.size() == 39);
  CHECK(std::ranges::find(found, all.back().to_string()) != found.end());
  CHECK(std::ranges::find(found, all[2].to_string()) == found.end());
  CHECK(std::ranges::find(found, "127.0.0.1") == found.end());
  CHECK(std::ranges::find(found, "fe80::1") == found.end());
}

TEST_CASE("other addresses: as many as there may be, with the longest texts, are within a frame") {
  Node node;
  node.alternates = alternate_addresses("10.0.0.1", rails(1000));
  CHECK(node.alternates.size() == kMaxAlternateAddresses);
  // Escaped as \u0001 each: nothing takes more bytes.
  node.id = node.instance = node.address = node.role = std::string(kLongestSent, '\1');
  const std::string frame = encode(FromAgent(Join{node, {}, {}}));
  CHECK(frame.size() < 60u << 10);
  const auto read = decode_from_agent(frame);
  REQUIRE(read.has_value());
  CHECK(std::get<Join>(*read).node.alternates == node.alternates);
}
