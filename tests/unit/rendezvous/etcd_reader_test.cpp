// SPDX-License-Identifier: Apache-2.0
#include "net/frame.hpp"
#include "rendezvous/election/make_elected.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

using namespace elastrun;
using namespace elastrun::rendezvous;

TEST_CASE("base64: every length survives, and only one text means each") {
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    const auto back = net::decode_base64(net::encode_base64(bytes));
    REQUIRE(back.has_value());
    CHECK(*back == bytes);
    bytes.push_back(static_cast<char>(i * 7));
  }
  CHECK(net::encode_base64("foob") == "Zm9vYg==");
  for (const char* bad : {"Zm9v Yg==", "Zm9vYg=", "Zm9vYh==", "====", "Z===", "Zm=v"}) {
    CHECK(!net::decode_base64(bad).has_value());
  }
}

// Recorded from etcd 3.4.23, shortened.
TEST_CASE("etcd reader: what a real server answers") {
  const auto none = etcd::read_range(R"({"header":{"cluster_id":"1","revision":"7"}})");
  REQUIRE(none.has_value());
  CHECK(!*none);
  const auto range = etcd::read_range(
      R"({"header":{"revision":"9"},"kvs":[{"key":"aw==","create_revision":"8",)"
      R"("mod_revision":"8","version":"1","value":"bWU=","lease":"7587"}],"count":"1"})");
  REQUIRE(range.has_value());
  CHECK(**range == etcd::Entry{"me", 8});

  const auto won = etcd::read_create(
      R"({"header":{"revision":"12"},"succeeded":true,"responses":[{"response_put":{}}]})", "me");
  REQUIRE(won.has_value());
  CHECK(**won == etcd::Entry{"me", 12});
  const auto lost =
      etcd::read_create(R"({"header":{"revision":"12"},"responses":[{"response_range":{"kvs":[)"
                        R"({"key":"aw==","create_revision":"8","value":"dGhlbQ=="}]}}]})",
                        "me");
  REQUIRE(lost.has_value());
  CHECK(**lost == etcd::Entry{"them", 8});

  CHECK(etcd::read_lease(R"({"header":{},"ID":"7587","TTL":"10"})")->ttl == 10);
  CHECK(etcd::read_lease(R"({"result":{"header":{},"ID":"7587","TTL":"10"}})")->id == 7587);
  CHECK(etcd::read_lease(R"({"result":{"header":{},"ID":"7587"}})")->ttl == 0);
}

TEST_CASE("etcd reader: refusals say what to do about them") {
  const auto leaderless = etcd::read_refusal(503, R"({"error":"etcdserver: no leader","code":14})");
  CHECK(leaderless.unavailable);
  CHECK(leaderless.error.text == "etcd: etcdserver: no leader");
  const auto token = etcd::read_refusal(
      401,
      R"({"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16})");
  CHECK(token.bad_token);
  CHECK(token.error.code == Code::Io);
  CHECK(etcd::read_refusal(400, R"({"error":"x","code":3})").error.code == Code::Usage);
  CHECK(etcd::read_refusal(502, "<html>").unavailable);
  CHECK(etcd::read_lease(R"({"error":{"grpc_code":14,"message":"no leader"}})").error().text ==
        "etcd: no leader");
}

TEST_CASE("etcd reader: what a login or a new lease mends is no usage error") {
  for (const char* text : {R"({"error":"etcdserver: revision of auth store is old","code":3})",
                           R"({"error":"etcdserver: user name is empty","code":3})",
                           R"({"error":"etcdserver: invalid auth token","code":16})"}) {
    CAPTURE(text);
    const auto refused = etcd::read_refusal(400, text);
    CHECK(refused.bad_token);
    CHECK(refused.error.code == Code::Io);
  }
  const auto lapsed =
      etcd::read_refusal(404, R"({"error":"etcdserver: requested lease not found","code":5})");
  CHECK(!lapsed.bad_token);
  CHECK(lapsed.error.code == Code::Io);
  CHECK(etcd::read_refusal(404, "404 page not found").error.code == Code::Usage);
  CHECK(
      etcd::read_refusal(403, R"({"error":"etcdserver: permission denied","code":7})").error.code ==
      Code::Usage);
}

TEST_CASE("etcd reader: cut, odd and hostile answers are refused without harm") {
  const std::string good =
      R"({"header":{"revision":"9"},"kvs":[{"key":"aw==","create_revision":"8","value":"bWU="}]})";
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    CHECK(!etcd::read_range(good.substr(0, cut)).has_value());
  }
  for (const char* text : {"[]", "null", R"({"kvs":1})", R"({"kvs":[1]})", R"({"kvs":[{}]})",
                           R"({"kvs":[{"value":"%%%%","create_revision":"1"}]})",
                           R"({"kvs":[{"value":"","create_revision":"-1"}]})"}) {
    CAPTURE(text);
    CHECK(!etcd::read_range(text).has_value());
  }
  CHECK(!etcd::read_create(R"({"succeeded":true})", "me").has_value());
  CHECK(!etcd::read_create("{}", "me").has_value());
  CHECK(!etcd::read_token("{}").has_value());
}
