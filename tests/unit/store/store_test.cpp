// SPDX-License-Identifier: Apache-2.0
// One contract, every Store.
#include "store/store.hpp"

#include "core/system_clock.hpp"
#include "core/text.hpp"
#include "store/client.hpp"
#include "store/file_store.hpp"
#include "store/server.hpp"

#include <algorithm>
#include <array>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::store;
using namespace std::string_literals;
namespace asio = boost::asio;
using Keys = std::vector<std::string>;
constexpr Duration kForever{-1};

namespace {

std::string fresh_path() {
  return (std::filesystem::temp_directory_path() / ("elastrun_store_" + random_text(12))).string();
}

/// Two users of one store, whichever kind it is.
struct World {
  asio::io_context loop;
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::string path = fresh_path();
  std::unique_ptr<Server> server;
  std::vector<std::unique_ptr<Store>> parts;
  Store* a = nullptr;
  Store* b = nullptr;

  explicit World(const std::string& kind) {
    if (kind == "file") {
      use(FileStore::open(loop, *clock, path, 2).value(),
          FileStore::open(loop, *clock, path, 2).value());
    } else {
      server = Server::listen(loop, "127.0.0.1", 0, {}).value();
      auto first = connect();
      use(std::move(first), connect());
    }
  }
  ~World() {
    parts.clear();
    std::filesystem::remove(path);
  }

  void use(std::unique_ptr<Store> first, std::unique_ptr<Store> second) {
    a = first.get();
    b = second.get();
    parts.push_back(std::move(first));
    parts.push_back(std::move(second));
  }
  std::unique_ptr<TcpClient> connect() {
    const asio::ip::tcp::endpoint at(asio::ip::address_v4::loopback(), server->port());
    return until<std::unique_ptr<TcpClient>>([&](auto done) {
             TcpClient::connect(loop, *clock, at, std::chrono::seconds(60), done);
           })
        .value();
  }

  /// Runs the loop until the call has answered.
  template <class T, class Ask>
  Result<T> until(Ask ask) {
    std::optional<Result<T>> answer;
    ask([&](Result<T> result) { answer = std::move(result); });
    CHECK(!answer);  // never inside the call
    while (!answer) {
      loop.restart();
      loop.run_one();
    }
    return std::move(*answer);
  }
  Status set(Store& store, const std::string& key, const std::string& value) {
    return until<void>([&](auto done) { store.set(key, value, done); });
  }
  Result<std::string> get(Store& store, const std::string& key, Duration timeout = kForever) {
    return until<std::string>([&](auto done) { store.get(key, timeout, done); });
  }
  Result<std::int64_t> add(Store& store, const std::string& key, std::int64_t delta) {
    return until<std::int64_t>([&](auto done) { store.add(key, delta, done); });
  }
  Result<std::string> compare_set(Store& store, const std::string& key, const std::string& expected,
                                  const std::string& desired) {
    return until<std::string>([&](auto done) { store.compare_set(key, expected, desired, done); });
  }
  Result<bool> check(Store& store, const Keys& keys) {
    return until<bool>([&](auto done) { store.check(keys, done); });
  }
  Status wait(Store& store, const Keys& keys, Duration timeout = kForever) {
    return until<void>([&](auto done) { store.wait(keys, timeout, done); });
  }
  Result<bool> erase(Store& store, const std::string& key) {
    return until<bool>([&](auto done) { store.erase(key, done); });
  }
  Keys keys(Store& store) {
    auto keys = until<Keys>([&](auto done) { store.list_keys(done); }).value();
    std::sort(keys.begin(), keys.end());
    return keys;
  }
};

const std::vector<std::string> kKinds = {"file", "tcp"};

/// Runs the same script against every kind of store.
template <class Script>
void every_store(Script script) {
  for (const auto& kind : kKinds) {
    CAPTURE(kind);
    World world(kind);
    script(world, *world.a, *world.b);
  }
}

}  // namespace

TEST_CASE("store: what one user sets, the other gets") {
  every_store([](World& at, Store& a, Store& b) {
    CHECK(at.set(a, "k", "1"));
    CHECK(at.get(b, "k") == "1");
    CHECK(at.set(b, "k", "\0binary\xFF"s));
    CHECK(at.get(a, "k") == "\0binary\xFF"s);
    CHECK(at.set(a, "k", ""));
    CHECK(at.get(b, "k") == "");
    const std::string large(300'000, 'x');
    CHECK(at.set(a, "large", large));
    CHECK(at.get(b, "large") == large);
  });
}

TEST_CASE("store: get and wait end when the other user has set the keys") {
  every_store([](World& at, Store& a, Store& b) {
    std::optional<Result<std::string>> got;
    std::optional<Status> waited;
    a.get("k", kForever, [&](auto value) { got = std::move(value); });
    b.wait({"x", "y"}, kForever, [&](auto done) { waited = done; });
    at.loop.poll();
    CHECK(!got);
    CHECK(!waited);
    // The other way round: each is blocked by its own wait only.
    std::unique_ptr<TcpClient> third = at.server ? at.connect() : nullptr;
    Store& c = third ? static_cast<Store&>(*third) : a;
    CHECK(at.set(c, "k", "v"));
    CHECK(at.set(c, "x", ""));
    CHECK(at.set(c, "y", ""));
    while (!got || !waited) {
      at.loop.restart();
      at.loop.run_one();
    }
    CHECK(*got == "v");
    CHECK(waited->has_value());
  });
}

TEST_CASE("store: a wait that is not fulfilled ends with torch's words, and later ones work") {
  every_store([](World& at, Store& a, Store& b) {
    const auto waited = at.wait(a, {"k", "l"}, Duration::zero());
    REQUIRE(!waited);
    CHECK(waited.error().code == Code::Timeout);
    CHECK(waited.error().text.starts_with("wait timeout after 0ms, keys: "));
    CHECK(at.get(a, "k", std::chrono::milliseconds(1)).error().code == Code::Timeout);
    CHECK(at.set(b, "k", "v"));
    CHECK(at.get(a, "k", Duration::zero()) == "v");
    CHECK(at.get(a, "k") == "v");
  });
}

TEST_CASE("store: counters are shared, and text is no counter") {
  every_store([](World& at, Store& a, Store& b) {
    CHECK(at.add(a, "n", 5) == 5);
    CHECK(at.add(b, "n", -7) == -2);
    CHECK(at.get(a, "n") == "-2");
  });
  World at("file");
  CHECK(at.set(*at.a, "n", "text"));
  CHECK(at.add(*at.a, "n", 1).error().code == Code::Store);
}

TEST_CASE("store: compare_set stores on a match only") {
  every_store([](World& at, Store& a, Store& b) {
    CHECK(at.compare_set(a, "k", "x", "1") == "x");
    CHECK(at.check(b, {"k"}) == false);
    CHECK(at.compare_set(a, "k", "", "1") == "1");
    CHECK(at.compare_set(b, "k", "0", "2") == "1");
    CHECK(at.compare_set(b, "k", "1", "2") == "2");
    CHECK(at.get(a, "k") == "2");
  });
}

TEST_CASE("store: check, erase, and the keys that are there") {
  every_store([](World& at, Store& a, Store& b) {
    CHECK(at.check(a, {}) == true);
    CHECK(at.set(a, "x", ""));
    CHECK(at.set(a, "y/z", ""));
    CHECK(at.check(b, {"x", "y/z"}) == true);
    CHECK(at.check(b, {"x", "other"}) == false);
    CHECK(at.keys(b) == Keys{"x", "y/z"});
    CHECK(at.until<std::int64_t>([&](auto done) { b.count_keys(done); }) == 2);
    CHECK(at.erase(b, "x") == true);
    CHECK(at.erase(a, "x") == false);
    CHECK(at.keys(a) == Keys{"y/z"});
  });
}

TEST_CASE("store: requests take effect in the order of the calls") {
  every_store([](World& at, Store& a, Store&) {
    std::optional<Result<std::string>> got;
    a.set("k", "1", [](auto) {});
    a.get("k", kForever, [&](auto value) { got = std::move(value); });
    a.add("k", 1, [](auto) {});
    CHECK(at.get(a, "k") == "2");
    REQUIRE(got);
    CHECK((*got == "1" || *got == "2"));
  });
}

TEST_CASE("store: a destroyed store calls nobody back") {
  for (const auto& kind : kKinds) {
    CAPTURE(kind);
    World at(kind);
    int called = 0;
    at.a->set("k", "v", [&](auto) { ++called; });
    at.a->get("missing", std::chrono::milliseconds(1), [&](auto) { ++called; });
    at.parts.clear();
    at.loop.restart();
    at.loop.run_for(std::chrono::milliseconds(5));
    CHECK(called == 0);
  }
}

TEST_CASE("file store: writes torch's bytes and reads them, deletions included") {
  World at("file");
  CHECK(at.set(*at.a, "k", "v"));
  CHECK(at.erase(*at.a, "k") == true);
  std::ifstream file(at.path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto record = [](const std::string& key, const std::string& value) {
    return std::string{static_cast<char>(key.size()), 0, 0, 0} + key +
           std::string{static_cast<char>(value.size()), 0, 0, 0} + value;
  };
  CHECK(bytes == record("refcount/", "1") + record("refcount/", "2") + record("/k", "v") +
                     record("-/k", ""));
  std::ofstream(at.path, std::ios::binary | std::ios::app) << record("/other", "7");
  CHECK(at.get(*at.b, "other") == "7");
}

TEST_CASE("file store: the last of its users removes the file") {
  World at("tcp");
  auto first = FileStore::open(at.loop, *at.clock, at.path, 2).value();
  auto second = FileStore::open(at.loop, *at.clock, at.path, 2).value();
  first.reset();
  CHECK(std::filesystem::exists(at.path));
  second.reset();
  CHECK(!std::filesystem::exists(at.path));
  FileStore::open(at.loop, *at.clock, at.path, -1).value().reset();
  CHECK(std::filesystem::exists(at.path));
}

TEST_CASE("file store: of many that leave together one removes the file") {
  constexpr int kUsers = 8;
  const std::string path = fresh_path();
  for (int time = 0; time < 50; ++time) {
    std::array<int, 2> ready{}, go{};
    REQUIRE(::pipe(ready.data()) == 0);
    REQUIRE(::pipe(go.data()) == 0);
    char word = 'x';
    for (int i = 0; i < kUsers; ++i) {
      if (::fork() != 0) continue;
      ::close(go[1]);
      asio::io_context loop;
      const auto clock = make_system_clock(loop.get_executor());
      auto store = FileStore::open(loop, *clock, path, kUsers).value();
      if (::write(ready[1], &word, 1) == 1 && ::read(go[0], &word, 1) == 0) store.reset();
      ::_exit(0);
    }
    for (int i = 0; i < kUsers; ++i) REQUIRE(::read(ready[0], &word, 1) == 1);
    for (const int end : {ready[0], ready[1], go[0], go[1]}) ::close(end);
    while (::wait(nullptr) > 0) {
    }
    REQUIRE_FALSE(std::filesystem::exists(path));
  }
}

TEST_CASE("file store: a torn or foreign file is named, and where it is torn") {
  World at("tcp");
  for (const std::string& bytes :
       {"\5\0\0\0/k"s, "text of somebody else"s, "\2\0\0\0/k\xFF\xFF\xFF\xFF"s}) {
    std::ofstream(at.path, std::ios::binary) << bytes;
    const auto store = FileStore::open(at.loop, *at.clock, at.path, 1);
    REQUIRE(!store);
    CHECK(store.error().code == Code::Io);
    CHECK(store.error().text.find(at.path + " is torn at byte 0") != std::string::npos);
  }
  const auto missing = FileStore::open(at.loop, *at.clock, "/nowhere/at/all", 1);
  CHECK(missing.error().text ==
        "cannot open the store's file /nowhere/at/all: No such file or directory");
}

TEST_CASE("tcp client: a server that is not there is tried until the timeout, and then named") {
  World at("tcp");
  asio::ip::tcp::acceptor nobody(at.loop, {asio::ip::address_v4::loopback(), 0});
  const auto endpoint = nobody.local_endpoint();
  nobody.close();
  const auto client = at.until<std::unique_ptr<TcpClient>>([&](auto done) {
    TcpClient::connect(at.loop, *at.clock, endpoint, std::chrono::milliseconds(1), done);
  });
  REQUIRE(!client);
  CHECK(client.error().code == Code::Timeout);
  CHECK(client.error().text.starts_with(
      fmt::format("no store at 127.0.0.1 port {} within 1.0 ms: ", endpoint.port())));
}

TEST_CASE("tcp client: finds a server that comes up later") {
  World at("tcp");
  auto early = Server::listen(at.loop, "127.0.0.1", 0, {}).value();
  const asio::ip::tcp::endpoint endpoint(asio::ip::address_v4::loopback(), early->port());
  early.reset();
  std::optional<Result<std::unique_ptr<TcpClient>>> client;
  TcpClient::connect(at.loop, *at.clock, endpoint, std::chrono::seconds(60),
                     [&](auto result) { client = std::move(result); });
  at.loop.run_one();
  const auto late = Server::listen(at.loop, "127.0.0.1", endpoint.port(), {}).value();
  while (!client) at.loop.run_one();
  REQUIRE(client->has_value());
  CHECK(at.set(***client, "k", "v"));
}

TEST_CASE("tcp client: all calls fail once the server has gone") {
  World at("tcp");
  std::optional<Result<std::string>> got;
  at.a->get("k", kForever, [&](auto value) { got = std::move(value); });
  at.loop.poll();
  at.server.reset();
  while (!got) {
    at.loop.restart();
    at.loop.run_one();
  }
  CHECK(got->error().code == Code::Closed);
  CHECK(at.set(*at.a, "k", "v").error().code == Code::Closed);
}
