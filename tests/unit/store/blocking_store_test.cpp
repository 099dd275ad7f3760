// SPDX-License-Identifier: Apache-2.0
#include "store/blocking_store.hpp"

#include "store/server.hpp"
#include "support/scratch.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <thread>

using namespace elastrun;
using namespace elastrun::store;
using namespace std::string_literals;
namespace asio = boost::asio;

namespace {

/// A server on a thread of its own, because the stores under test block this one.
struct ServedElsewhere {
  explicit ServedElsewhere(std::uint16_t port = 0)
      : server(std::move(*Server::listen(loop, "127.0.0.1", port, {}))) {}
  ~ServedElsewhere() {
    loop.stop();
    thread.join();
  }
  std::shared_ptr<BlockingStore> client() {
    auto made = BlockingStore::connect("localhost", server->port());
    REQUIRE(made);
    return *made;
  }

  asio::io_context loop;
  std::unique_ptr<Server> server;
  std::thread thread{[this] { loop.run(); }};
};

/// Runs the same script with three users of each kind of store.
template <class Script>
void every_store(Script script) {
  SUBCASE("tcp") {
    ServedElsewhere elsewhere;
    script(*elsewhere.client(), *elsewhere.client(), *elsewhere.client());
  }
  SUBCASE("file") {
    const test::Scratch folder;
    const auto open = [&] { return *BlockingStore::open_file(folder / "store"); };
    script(*open(), *open(), *open());
  }
}

std::uint16_t unused_port() {
  asio::io_context loop;
  return asio::ip::tcp::acceptor(loop, {asio::ip::address_v4::loopback(), 0})
      .local_endpoint()
      .port();
}

}  // namespace

TEST_CASE("store: what one user sets, the other gets") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore&) {
    CHECK(a.set("k", "1"));
    CHECK(b.get("k") == "1");
    CHECK(b.set("k", "\0binary\xFF"s));
    CHECK(a.get("k") == "\0binary\xFF"s);
    CHECK(a.set("k", ""));
    CHECK(b.get("k") == "");
    const std::string large(5'000'000, 'x');
    CHECK(a.set("large", large));
    CHECK(b.get("large") == large);
  });
}

TEST_CASE("store: get and wait end when the other user has set the keys") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore& c) {
    std::thread getter([&] { CHECK(a.get("k") == "v"); });
    std::thread waiter([&] { CHECK(b.wait({"x", "y"}, Duration(-1))); });
    for (const auto* key : {"x", "k", "y"}) CHECK(c.set(key, "v"));
    getter.join();
    waiter.join();
  });
}

TEST_CASE("store: a wait that is not fulfilled ends with torch's words, and later ones work") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore&) {
    const auto waited = a.wait({"k", "l"}, Duration::zero());
    REQUIRE(!waited);
    CHECK(waited.error().code == Code::Timeout);
    CHECK(waited.error().text == "wait timeout after 0ms, keys: k, l");
    CHECK(a.get("k", std::chrono::milliseconds(1)).error().code == Code::Timeout);
    CHECK(b.set("k", "v"));
    CHECK(a.get("k", Duration::zero()) == "v");
    CHECK(a.get("k") == "v");
  });
}

TEST_CASE("store: counters are shared, and text is no counter") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore&) {
    CHECK(a.add("n", 5) == 5);
    CHECK(b.add("n", -7) == -2);
    CHECK(a.get("n") == "-2");
    CHECK(a.set("n", "text"));
    CHECK_FALSE(a.add("n", 1));
  });
}

TEST_CASE("store: compare_set stores on a match only") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore&) {
    CHECK(a.compare_set("k", "x", "1") == "x");
    CHECK(b.check({"k"}) == false);
    CHECK(a.compare_set("k", "", "1") == "1");
    CHECK(b.compare_set("k", "0", "2") == "1");
    CHECK(b.compare_set("k", "1", "2") == "2");
    CHECK(a.get("k") == "2");
  });
}

TEST_CASE("store: check and erase") {
  every_store([](BlockingStore& a, BlockingStore& b, BlockingStore&) {
    CHECK(a.check({}) == true);
    CHECK(a.set("x", ""));
    CHECK(a.set("y/z", ""));
    CHECK(b.check({"x", "y/z"}) == true);
    CHECK(b.check({"x", "other"}) == false);
    CHECK(b.erase("x") == true);
    CHECK(a.erase("x") == false);
    CHECK(a.check({"x"}) == false);
  });
}

TEST_CASE("store: a prefix is a store of its own in the same one") {
  every_store([](BlockingStore& whole, BlockingStore&, BlockingStore&) {
    const auto part = whole.within("run")->within("1");
    CHECK(part->set("k", "v"));
    CHECK(*whole.get("run/1/k") == "v");
    CHECK_FALSE(*whole.check({"k"}));
  });
}

TEST_CASE("file store: writes torch's bytes and reads them, deletions included") {
  const test::Scratch folder;
  auto store = *BlockingStore::open_file(folder / "s");
  CHECK(store->set("k", "v"));
  CHECK(store->erase("k") == true);
  const auto record = [](const std::string& key, const std::string& value) {
    return std::string{static_cast<char>(key.size()), 0, 0, 0} + key +
           std::string{static_cast<char>(value.size()), 0, 0, 0} + value;
  };
  auto bytes = record("refcount/", "1") + record("/k", "v") + record("-/k", "");
  CHECK(test::content(folder / "s") == bytes);
  std::ofstream(folder / "s", std::ios::binary | std::ios::app) << record("/other", "7");
  CHECK(store->get("other") == "7");
  // Counts itself out, and leaves the file.
  store.reset();
  bytes += record("/other", "7") + record("cleanup/", "1") + record("refcount/", "0");
  CHECK(test::content(folder / "s") == bytes);
}

TEST_CASE("file store: a torn or foreign file is named, and where it is torn") {
  const test::Scratch folder;
  const std::string path = folder / "s";
  for (const std::string& bytes :
       {"\5\0\0\0/k"s, "text of somebody else"s, "\2\0\0\0/k\xFF\xFF\xFF\xFF"s}) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto store = BlockingStore::open_file(path);
    REQUIRE(!store);
    CHECK(store.error().code == Code::Io);
    CHECK(store.error().text.find(path + " is torn at byte 0") != std::string::npos);
    CHECK(test::content(path) == bytes);
  }
  CHECK(BlockingStore::open_file("/nowhere/at/all").error().text ==
        "cannot open the store's file /nowhere/at/all: No such file or directory");
}

TEST_CASE("tcp client: a server that is not there is tried until the timeout, and then named") {
  const auto port = unused_port();
  const auto client = BlockingStore::connect("127.0.0.1", port, std::chrono::milliseconds(1));
  REQUIRE(!client);
  CHECK(client.error().code == Code::Timeout);
  CHECK(
      client.error().text.starts_with(fmt::format("no store at 127.0.0.1 port {} within ", port)));
  CHECK(client.error().text.ends_with(": Connection refused"));
}

TEST_CASE("tcp client: finds a server that comes up later") {
  std::optional<ServedElsewhere> late;
  asio::io_context loop;
  asio::ip::tcp::acceptor early(loop, {asio::ip::address_v4::loopback(), 0});
  const auto port = early.local_endpoint().port();
  std::thread begins([&] {
    early.accept().close();  // the first try has come
    early.close();
    late.emplace(port);
  });
  const auto client = BlockingStore::connect("127.0.0.1", port);
  begins.join();
  REQUIRE(client);
  CHECK((*client)->set("k", "v"));
}

TEST_CASE("tcp client: all calls fail once the server has gone") {
  auto elsewhere = std::make_unique<ServedElsewhere>();
  const auto store = elsewhere->client();
  std::thread gone([&] {
    elsewhere->loop.stop();
    elsewhere->thread.join();
    elsewhere->server.reset();
    elsewhere->thread = std::thread([] {});
  });
  const auto got = store->get("k");
  gone.join();
  REQUIRE_FALSE(got);
  CHECK(got.error().code == Code::Closed);
  CHECK(store->set("k", "v").error().code == Code::Closed);
}
