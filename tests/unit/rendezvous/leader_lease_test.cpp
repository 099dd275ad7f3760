// SPDX-License-Identifier: Apache-2.0
// One contract for every lease, and what is particular to each.
#include "core/json.hpp"
#include "core/unique_fd.hpp"
#include "rendezvous/election/election.hpp"
#include "rendezvous/election/make_elected.hpp"
#include "support/scratch.hpp"
#include "unit/rendezvous/agents.hpp"
#include "unit/rendezvous/etcd_server.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <boost/crc.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <utility>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

using LeaseMaker = std::function<std::unique_ptr<LeaderLease>()>;

/// Asks, and waits for the answer, again and again while it is a transient error: a server that has
/// just been started needs a moment.
struct Clerk {
  explicit Clerk(Network& with) : network(with) {}

  template <class T, class Ask>
  T answer(Ask ask) {
    for (;;) {
      std::optional<Result<T>> answer;
      ask([&](auto found) { answer = std::move(found); });
      run_until(network.loop, [&] { return answer.has_value(); });
      if (*answer) return **answer;
      REQUIRE((*answer).error().code != Code::Usage);
    }
  }
  std::optional<LeaderLease::Leader> read(LeaderLease& lease) {
    return answer<std::optional<LeaderLease::Leader>>([&](auto told) { lease.read(told); });
  }
  LeaderLease::Leader claim(LeaderLease& lease, const std::string& value) {
    return answer<LeaderLease::Leader>([&](auto told) { lease.claim(value, told); });
  }
  bool renew(LeaderLease& lease) {
    return answer<bool>([&](auto told) { lease.renew(told); });
  }
  bool record(LeaderLease& lease, const std::string& record) {
    return answer<bool>([&](auto told) { lease.record(record, told); });
  }
  void release(LeaderLease& lease, bool forget = false) {
    bool done = false;
    lease.release(forget, [&] { done = true; });
    run_until(network.loop, [&] { return done; });
  }
  Network& network;
};

SessionSettings lease_settings(const std::string& endpoint, Duration ttl,
                               const std::string& run_id = "job") {
  SessionSettings settings;
  settings.endpoint = endpoint;
  settings.run_id = run_id;
  settings.config.lease_ttl = ttl;
  return settings;
}

/// A lease in that file, or in that directory.
std::unique_ptr<LeaderLease> file_lease(Network& network, const std::string& path, Duration ttl) {
  auto made = make_file_lease(network.loop, *network.clock, lease_settings(path, ttl, "job/1"));
  REQUIRE(made.has_value());
  return std::move(*made);
}

void check_contract(Network& network, const LeaseMaker& make) {
  Clerk clerk(network);
  const auto mine = make(), theirs = make();
  CHECK(!clerk.read(*mine));
  const auto leader = clerk.claim(*mine, "me");
  CHECK(leader.value == "me");
  CHECK(leader.record.empty());
  CHECK(clerk.claim(*theirs, "them").value == "me");
  CHECK(clerk.read(*theirs)->epoch == leader.epoch);
  CHECK(clerk.renew(*mine));
  CHECK(clerk.read(*theirs)->epoch == leader.epoch);

  // Only the leader's records are taken, and the next leader finds the last one.
  CHECK(clerk.record(*mine, "one world"));
  CHECK(clerk.record(*mine, "another world"));
  CHECK(clerk.renew(*mine));
  clerk.release(*mine);
  CHECK(!clerk.read(*theirs));
  CHECK(!clerk.renew(*mine));
  const auto next = clerk.claim(*theirs, "them");
  CHECK(next.value == "them");
  CHECK(next.record == "another world");
  CHECK(!clerk.record(*mine, "too late"));
  CHECK(next.epoch > leader.epoch);

  // Never renewed again: it lapses.
  while (clerk.read(*mine)) network.loop.restart(), network.loop.run_for(20ms);
  const auto again = clerk.claim(*mine, "me again");
  CHECK(again.epoch > next.epoch);
  CHECK(again.record == "another world");
  CHECK(!clerk.record(*theirs, "too late"));
  CHECK(!clerk.renew(*theirs));
  // One that was succeeded, and ends only now, leaves its successor's record.
  clerk.release(*theirs, true);
  clerk.release(*mine);
  CHECK(clerk.claim(*theirs, "them again").record == "another world");
  clerk.release(*theirs, true);
  CHECK(clerk.claim(*mine, "me once more").record.empty());
}

using Folder = elastrun::test::Scratch;

/// The file of a lease that was renewed in 1970, as its leader writes it.
void write_entry(const std::string& file, const std::string& leader, int heartbeat) {
  json::object fields{{"value", leader},    {"epoch", 41},   {"heartbeat", heartbeat},
                      {"renewed", 1000000}, {"record", "x"}, {"version", heartbeat}};
  const std::string text = json::serialize(fields);
  boost::crc_32_type crc;
  crc.process_bytes(text.data(), text.size());
  fields["sum"] = fmt::format("{:08x}", crc.checksum());
  std::string slot = json::serialize(fields);
  slot.resize(4095, ' ');
  slot += '\n';
  std::ofstream(file) << slot << slot;
}

}  // namespace

TEST_CASE("leader lease: a file keeps the contract") {
  Network network;
  Folder folder;
  check_contract(network, [&] { return file_lease(network, folder.path, 100ms); });
  CHECK(std::filesystem::exists(folder.path + "/elastrun-job%2f1.json"));
}

TEST_CASE("leader lease: a file of something else is refused, not overwritten") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/notes.txt";
  std::ofstream(file) << "dear diary";
  const auto lease = file_lease(network, file, 1s);
  std::optional<Error> error;
  lease->claim("me", [&](const auto& found) { error = found.error(); });
  run_until(network.loop, [&] { return error.has_value(); });
  CHECK(error->code == Code::Usage);
  CHECK(error->text.find("is not a rendezvous file") != std::string::npos);
}

TEST_CASE("leader lease: an entry left over from another day is taken after a term and a half") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/old";
  write_entry(file, "ghost", 7);
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - 24h);
  const auto lease = file_lease(network, file, 20ms);
  Clerk clerk(network);
  auto leader = clerk.claim(*lease, "me");
  CHECK(leader.value == "ghost");
  while (leader.value == "ghost") leader = clerk.claim(*lease, "me");
  CHECK(leader.epoch == 42);
  CHECK(leader.record.empty());
}

TEST_CASE("leader lease: a file is written in place, and outlives a write that is cut off") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/entry";
  const auto text = [&file] {
    return std::string(std::istreambuf_iterator<char>(std::ifstream(file).rdbuf()), {});
  };
  const auto mine = file_lease(network, file, 10s);
  Clerk clerk(network);
  REQUIRE(clerk.claim(*mine, "me").value == "me");
  struct stat before {};
  REQUIRE(::stat(file.c_str(), &before) == 0);
  for (int i = 0; i < 3; ++i) REQUIRE(clerk.renew(*mine));
  REQUIRE(clerk.record(*mine, "a world"));
  struct stat after {};
  REQUIRE(::stat(file.c_str(), &after) == 0);
  CHECK(after.st_ino == before.st_ino);
  CHECK(after.st_size == before.st_size);

  // Wherever the next write is cut off, what was there before it still counts.
  const std::string old = text();
  REQUIRE(clerk.renew(*mine));
  const std::string whole = text();
  const auto [from, there] = std::ranges::mismatch(old, whole);
  const auto begin = static_cast<std::size_t>(from - old.begin());
  for (std::size_t cut = begin; cut < begin + 300; cut += 7) {
    std::ofstream(file) << whole.substr(0, cut) << old.substr(cut);
    const auto theirs = file_lease(network, file, 10s);
    const auto leader = clerk.read(*theirs);
    REQUIRE(leader);
    CHECK(leader->value == "me");
    CHECK(leader->epoch == 1);
  }
  CHECK(clerk.renew(*mine));
  clerk.release(*mine);
  CHECK(clerk.claim(*mine, "me again").record == "a world");
}

TEST_CASE("leader lease: a record of any length, and a file of which nothing is whole") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/entry";
  const auto mine = file_lease(network, file, 10s);
  Clerk clerk(network);
  clerk.claim(*mine, "me");
  const std::string longer(5000, 'x'), longest(12000, 'y');
  for (const auto& record : {longer, longest, std::string("short")}) {
    REQUIRE(clerk.record(*mine, record));
    REQUIRE(clerk.renew(*mine));
  }
  REQUIRE(clerk.record(*mine, longest));
  clerk.release(*mine);
  CHECK(clerk.claim(*mine, "me again").record == longest);

  std::string text(std::istreambuf_iterator<char>(std::ifstream(file).rdbuf()), {});
  text[12] = text[text.size() / 2 + 12] = '?';
  std::ofstream(file) << text;
  std::optional<Error> error;
  mine->read([&](const auto& found) { error = found.error(); });
  run_until(network.loop, [&] { return error.has_value(); });
  CHECK(error->code == Code::Io);  // no mistake of the user's: it may be whole a moment later
  CHECK(error->text.starts_with(file + " is damaged;"));
}

TEST_CASE("leader lease: a newcomer whose clock is years ahead leaves an entry that moves alone") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/entry";
  const auto lease = file_lease(network, file, 10s);
  Clerk clerk(network);
  for (int heartbeat = 0; heartbeat < 5; ++heartbeat) {
    write_entry(file, "them", heartbeat);
    CHECK(clerk.read(*lease)->value == "them");
    const auto leader = clerk.claim(*lease, "me");
    CHECK(leader.value == "them");
    CHECK(leader.epoch == 41);
  }
}

TEST_CASE("leader lease: a lock that stays names its file, its owner and the way out") {
  Network network;
  Folder folder;
  const std::string file = folder.path + "/entry", lock = file + ".lock";
  const auto lease = file_lease(network, file, 10s);
  const auto claim = [&] {
    std::optional<Result<LeaderLease::Leader>> answer;
    lease->claim("me", [&](auto found) { answer = std::move(found); });
    run_until(network.loop, [&] { return answer.has_value(); });
    return *answer;
  };
  // As of a machine that is gone.
  std::ofstream(lock) << "n7.example 4711\n";
  const UniqueFd held(::open(lock.c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  REQUIRE(::fcntl(held.get(), F_OFD_SETLK, &whole) == 0);
  const auto locked = claim();
  REQUIRE(!locked.has_value());
  CHECK(locked.error().code == Code::Io);
  CHECK(locked.error().text.starts_with(lock + " is locked by process 4711 on n7.example;"));
  CHECK(locked.error().text.find("delete this file") != std::string::npos);
  // What somebody else has written there is not repeated.
  std::ofstream(lock) << "\x1b[2J 1\n";
  CHECK(claim().error().text.starts_with(lock + " is locked by another process;"));
  std::filesystem::remove(lock);
  REQUIRE(claim().has_value());
  std::string host, pid;
  std::ifstream(lock) >> host >> pid;
  CHECK(pid == std::to_string(::getpid()));
}

TEST_CASE("leader lease: etcd keeps the contract") {
  if (!has_etcd()) return;
  Network network;
  EtcdServer etcd;
  check_contract(network, [&] {
    auto lease =
        make_etcd_lease(network.loop, *network.clock, lease_settings(etcd.endpoints(), 1s));
    REQUIRE(lease.has_value());
    return std::move(*lease);
  });
}

TEST_CASE("leader lease: etcd keeps the record of a world that is at work for long") {
  if (!has_etcd()) return;
  Network network;
  EtcdServer etcd;
  Clerk clerk(network);
  // A record that lives for little longer than two renewals.
  auto settings = lease_settings(etcd.endpoints(), 6s);
  settings.config.isolation_timeout = 1s;
  settings.config.keep_alive_interval = 1ms;
  const auto made = [&] { return make_etcd_lease(network.loop, *network.clock, settings).value(); };
  const auto mine = made(), theirs = made();
  clerk.claim(*mine, "me");
  CHECK(clerk.record(*mine, "a world"));
  for (int i = 0; i < 12; ++i) {
    network.loop.restart();
    network.loop.run_for(std::chrono::seconds(1));
    CHECK(clerk.renew(*mine));
  }
  clerk.release(*mine);
  CHECK(clerk.claim(*theirs, "them").record == "a world");
}

TEST_CASE("leader lease: the loss of one member of three, and a restart of all, change nothing") {
  if (!has_etcd()) return;
  Network network;
  EtcdServer etcd(3);
  Clerk clerk(network);
  auto made = make_etcd_lease(network.loop, *network.clock, lease_settings(etcd.endpoints(), 60s));
  REQUIRE(made.has_value());
  LeaderLease& lease = **made;
  const auto leader = clerk.claim(lease, "me");
  for (int member = 0; member < 3; ++member) {
    etcd.kill(member);
    CHECK(clerk.read(lease)->epoch == leader.epoch);
    CHECK(clerk.renew(lease));
    etcd.start(member);
  }
  for (int member = 0; member < 3; ++member) etcd.kill(member);
  for (int member = 0; member < 3; ++member) etcd.start(member);
  CHECK(clerk.renew(lease));
}

TEST_CASE("leader lease: a register that does not answer holds up no release") {
  if (!has_etcd()) return;
  Network network;
  EtcdServer etcd;
  Clerk clerk(network);
  const Duration ttl = 2s;
  // Each of the eight is waited for half a second: a question alone takes two terms.
  std::string endpoints = etcd.endpoints();
  for (int i = 0; i < 3; ++i) endpoints += "," + endpoints;
  const auto lease =
      make_etcd_lease(network.loop, *network.clock, lease_settings(endpoints, ttl)).value();
  clerk.claim(*lease, "me");
  etcd.freeze(0);
  const auto asked = network.clock->now();
  clerk.release(*lease);
  CHECK(network.clock->now() - asked < ttl * 3 / 2);
}

namespace {

/// Gives each request the same answer, as a member of an etcd or what stands before it.
struct Gateway {
  using tcp = boost::asio::ip::tcp;
  Gateway(Network& network, const std::string& status, const std::string& body)
      : acceptor(network.loop, {boost::asio::ip::address_v4::loopback(), 0}),
        answer(fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                           status, body.size(), body)) {
    serve();
  }
  void serve() {
    acceptor.async_accept([this](boost::system::error_code failed, tcp::socket peer) {
      if (failed) return;
      auto socket = std::make_shared<tcp::socket>(std::move(peer));
      auto request = std::make_shared<std::string>();
      // The body, an object, is what ends with a brace.
      boost::asio::async_read_until(*socket, boost::asio::dynamic_buffer(*request), '}',
                                    [this, socket, request](auto, auto) {
                                      ++requests;
                                      boost::asio::write(*socket, boost::asio::buffer(answer));
                                    });
      serve();
    });
  }
  std::string endpoint() const {
    return "127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
  }
  tcp::acceptor acceptor;
  const std::string answer;
  int requests = 0;
};

}  // namespace

TEST_CASE("leader lease: a member that is away refuses nobody, whatever it says of their token") {
  Network network;
  const Gateway away(network, "503 Service Unavailable",
                     R"({"message":"etcdserver: invalid auth token","code":14})");
  const Gateway there(network, "200 OK", "{}");
  const auto settings = lease_settings(away.endpoint() + "," + there.endpoint(), 10s);
  const auto lease = make_etcd_lease(network.loop, *network.clock, settings).value();
  Clerk clerk(network);
  CHECK(!clerk.read(*lease));
  CHECK(away.requests == 1);
  CHECK(there.requests == 1);
}

TEST_CASE("leader lease: settings that cannot be are refused before anything is asked") {
  Network network;
  const auto refuse = [&](const std::string& endpoint, const spec::RendezvousConfig& config) {
    auto settings = lease_settings(endpoint, 10s);
    settings.config = config;
    auto made = make_etcd_lease(network.loop, *network.clock, settings);
    REQUIRE(!made.has_value());
    CHECK(made.error().code == Code::Usage);
    return made.error().text;
  };
  CHECK(refuse("a:b:c:d:99999x", {}) != "");
  CHECK(refuse("https://a", {.ca_cert = "/nowhere/ca.pem"}).find("/nowhere/ca.pem") !=
        std::string::npos);
  CHECK(refuse("https://a", {.ssl_cert = "/nowhere/c.pem"}).find("needs both") !=
        std::string::npos);
  CHECK(refuse("a", {.user = "root"}).find("password") != std::string::npos);
  auto file = make_file_lease(network.loop, *network.clock, lease_settings("/nowhere/at/all", 10s));
  REQUIRE(!file.has_value());
  CHECK(file.error().text.find("/nowhere/at is not a directory") != std::string::npos);
}
