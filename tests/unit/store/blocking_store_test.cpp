// SPDX-License-Identifier: Apache-2.0
#include "store/blocking_store.hpp"

#include "store/server.hpp"
#include "support/scratch.hpp"

#include <doctest/doctest.h>
#include <thread>

using namespace elastrun;
using namespace elastrun::store;

namespace {

/// A server on a thread of its own, because the store under test blocks this one.
struct ServedElsewhere {
  boost::asio::io_context loop;
  std::unique_ptr<Server> server = std::move(*Server::listen(loop, "127.0.0.1", 0, {}));
  std::thread thread{[this] { loop.run(); }};
  ~ServedElsewhere() {
    loop.stop();
    thread.join();
  }
  std::shared_ptr<BlockingStore> client() {
    auto made = BlockingStore::connect("localhost", server->port());
    REQUIRE(made);
    return *made;
  }
};

}  // namespace

TEST_CASE("blocking store: values and counters go through a server and come back") {
  ServedElsewhere elsewhere;
  const auto store = elsewhere.client();
  CHECK(store->set("a", "1"));
  CHECK(*store->get("a") == "1");
  CHECK(*store->add("n", 2) == 2);
  CHECK(*store->add("n", 3) == 5);
  CHECK(*store->check({"a", "n"}));
  CHECK_FALSE(*store->check({"b"}));
  CHECK(*store->compare_set("a", "1", "2") == "2");
  CHECK(*store->erase("a"));
}

TEST_CASE("blocking store: who gets a missing key waits until another client sets it") {
  ServedElsewhere elsewhere;
  const auto mine = elsewhere.client();
  std::thread other([&elsewhere] { CHECK(elsewhere.client()->set("late", "here")); });
  CHECK(*mine->get("late") == "here");
  other.join();
}

TEST_CASE("blocking store: a wait ends with a timeout that names the keys") {
  ServedElsewhere elsewhere;
  const auto store = elsewhere.client();
  const auto waited = store->wait({"never"}, std::chrono::milliseconds(1));
  REQUIRE_FALSE(waited);
  CHECK(waited.error().code == Code::Timeout);
  CHECK(waited.error().text.find("never") != std::string::npos);
}

TEST_CASE("blocking store: a prefix is a store of its own on the same connection") {
  ServedElsewhere elsewhere;
  const auto whole = elsewhere.client();
  const auto part = whole->within("run")->within("1");
  CHECK(part->set("k", "v"));
  CHECK(*whole->get("run/1/k") == "v");
  CHECK_FALSE(*whole->check({"k"}));
}

TEST_CASE("blocking store: a server that has gone is an error, not a wait") {
  auto elsewhere = std::make_unique<ServedElsewhere>();
  const auto store = elsewhere->client();
  elsewhere->loop.stop();
  elsewhere->thread.join();
  elsewhere->server.reset();
  elsewhere->thread = std::thread([] {});
  const auto got = store->get("k");
  REQUIRE_FALSE(got);
  CHECK(got.error().code == Code::Closed);
}

TEST_CASE("blocking store: two openings of one file see each other") {
  const test::Scratch folder;
  const auto one = BlockingStore::open_file(folder.path + "/store");
  const auto two = BlockingStore::open_file(folder.path + "/store");
  REQUIRE(one);
  REQUIRE(two);
  CHECK((*one)->set("k", "v"));
  CHECK(*(*two)->get("k") == "v");
  CHECK_FALSE(BlockingStore::open_file(folder.path + "/missing/store"));
}
