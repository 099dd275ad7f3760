// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/handler.hpp"

#include <algorithm>
#include <doctest/doctest.h>

using namespace elastrun;
using namespace elastrun::rendezvous;

namespace {

struct Named final : RendezvousHandler {
  explicit Named(std::string own) : name(std::move(own)) {}
  std::string get_backend() const override { return name; }
  std::string get_run_id() const override { return "r"; }
  Result<RendezvousInfo> next_rendezvous() override { return RendezvousInfo{}; }
  std::string name;
};

HandlerCreator making(std::string name) {
  return [name](const RendezvousParameters&) { return std::make_shared<Named>(name); };
}

std::string error_of(const RendezvousParameters& parameters) {
  const auto handler = get_rendezvous_handler(parameters);
  REQUIRE_FALSE(handler);
  return handler.error().text;
}

}  // namespace

TEST_CASE("handler registry: a registered back end is made from its parameters") {
  std::string seen;
  REQUIRE(register_rendezvous_handler("test-made", [&](const RendezvousParameters& parameters) {
    seen = parameters.endpoint;
    return std::make_shared<Named>("test-made");
  }));
  const auto handler = get_rendezvous_handler({.backend = "test-made", .endpoint = "here:1"});
  REQUIRE(handler);
  CHECK((*handler)->get_backend() == "test-made");
  CHECK(seen == "here:1");
  const auto names = registered_backends();
  CHECK(std::ranges::find(names, "test-made") != names.end());
}

TEST_CASE("handler registry: a taken name, an unknown one and a false one are refused") {
  REQUIRE(register_rendezvous_handler("test-taken", making("test-taken")));
  for (const char* name : {"test-taken", "c10d", "static", "etcd", "etcd-v2", "file"}) {
    const auto again = register_rendezvous_handler(name, making(name));
    REQUIRE_FALSE(again);
    CHECK(again.error().text.find("already registered") != std::string::npos);
  }
  CHECK_FALSE(register_rendezvous_handler("", making("")));
  CHECK(error_of({.backend = "nobody"}) ==
        "The rendezvous backend 'nobody' is not registered, and it is none of those that are built "
        "in.");
  REQUIRE(register_rendezvous_handler("test-liar", making("somebody")));
  CHECK(error_of({.backend = "test-liar"}) ==
        "The rendezvous backend 'somebody' does not match the requested backend 'test-liar'.");
}

TEST_CASE("handler registry: parameters are checked, as torchrun checks them") {
  CHECK(error_of({}) == "A rendezvous backend needs a name, and this one is empty.");
  CHECK(error_of({.backend = "c10d", .min_nodes = 0}) ==
        "The minimum number of nodes has to be 1 or more, not 0.");
  CHECK(error_of({.backend = "c10d", .min_nodes = 3, .max_nodes = 2}) ==
        "The maximum number of nodes (2) is below the minimum (3).");
}

TEST_CASE("handler parameters: configuration is read as text, truth and number") {
  const RendezvousParameters parameters{.conf = {{"on", "Yes"}, {"off", "0"}, {"n", " 12 "}}};
  CHECK(parameters.get("on") == "Yes");
  CHECK(parameters.get("none", "x") == "x");
  CHECK(*parameters.get_as_bool("on") == true);
  CHECK(*parameters.get_as_bool("off") == false);
  CHECK_FALSE(parameters.get_as_bool("none")->has_value());
  CHECK(*parameters.get_as_int("n") == 12);
  CHECK(parameters.get_as_bool("n").error().text ==
        "The rendezvous configuration option 'n' does not represent a valid boolean value.");
  CHECK(parameters.get_as_int("on").error().text ==
        "The rendezvous configuration option 'on' does not represent a valid integer value.");
}

TEST_CASE("handler registry: a built-in back end is for agents") {
  const auto handler = get_rendezvous_handler({.backend = "c10d", .run_id = "seven"});
  REQUIRE(handler);
  CHECK((*handler)->get_backend() == "c10d");
  CHECK((*handler)->get_run_id() == "seven");
  const auto round = (*handler)->next_rendezvous();
  REQUIRE_FALSE(round);
  CHECK(round.error().code == Code::Usage);
}
