// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/session/munge.hpp"

#include "unit/rendezvous/agents.hpp"

#include <boost/asio/executor_work_guard.hpp>
#include <doctest/doctest.h>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>

using namespace elastrun;
using namespace elastrun::rendezvous;
using namespace elastrun::rendezvous::test;

namespace {

/// A MUNGE in memory: a credential is a number, known to those with the same realm.
class FakeMunge final : public Munge {
 public:
  Result<std::string> encode(std::string_view payload, uid_t reader) const override {
    const std::lock_guard lock(mutex_);
    const std::string credential = "MUNGE:" + std::to_string(made_.size()) + ":";
    made_[credential] = {std::string(payload), reader};
    last_ = credential;
    return credential;
  }
  Result<Opened> decode(const std::string& credential) const override {
    const std::lock_guard lock(mutex_);
    const auto found = made_.find(credential);
    if (found == made_.end() || found->second.second != ::geteuid()) {
      return fail(Code::Rendezvous, "MUNGE does not accept the credential: Invalid credential");
    }
    return Opened{found->second.first, writer};
  }
  std::string last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }

  uid_t writer = ::geteuid();  // as whom the others are known

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::pair<std::string, uid_t>> made_;
  mutable std::string last_;
};

/// A coordinator and agents of which each has its own MUNGE, or none.
struct MungeCluster {
  explicit MungeCluster(std::shared_ptr<const Munge> munge, std::string start = {},
                        Rules rules = rules_for(1, 1))
      : job_rules(rules) {
    CoordinatorSettings settings;
    settings.run_id = "job";
    settings.start = std::move(start);
    settings.rules = rules;
    auto opened = Coordinator::open(network.loop, *network.clock, sealer(std::move(munge), true),
                                    {}, settings);
    REQUIRE(opened.has_value());
    host = std::move(*opened);
  }

  std::shared_ptr<const net::Sealer> sealer(std::shared_ptr<const Munge> munge, bool required) {
    if (!munge) return net::make_sealer("");
    return net::make_sealer("", make_munge_exchange(network.loop, std::move(munge), required));
  }

  std::unique_ptr<TestAgent> agent(std::shared_ptr<const Munge> munge, std::string start = {},
                                   bool required = true) {
    SessionSettings settings;
    settings.run_id = "job";
    settings.start = std::move(start);
    settings.rules = job_rules;
    const auto with = sealer(std::move(munge), required);
    auto one = agent_at(network, host->port(), std::move(settings), with);
    one->join();
    return one;
  }

  Network network;
  Rules job_rules;
  std::unique_ptr<Coordinator> host;
};

}  // namespace

TEST_CASE("admission: an agent of an earlier start of the job does not join") {
  MungeCluster cluster(nullptr, "170/1");
  auto late = cluster.agent(nullptr, "60/0");
  CHECK(late->hear<Lost>().why.contains("earlier start"));
  CHECK(cluster.agent(nullptr, "170/1")->round().group_world_size() == 1);
}

TEST_CASE("admission: nodes meet of which only some are told when the job has started") {
  for (const char* start : {"170/1", "/1"}) {
    CAPTURE(start);
    MungeCluster cluster(nullptr, start);
    CHECK(cluster.agent(nullptr, "/0")->hear<Lost>().why.contains("earlier start"));
    CHECK(cluster.agent(nullptr, "/1")->round().group_world_size() == 1);
  }
  MungeCluster cluster(nullptr, "/1");
  CHECK(cluster.agent(nullptr, "170/1")->round().group_world_size() == 1);
}

TEST_CASE("munge: agents of one user meet by MUNGE, without a secret") {
  const auto munge = std::make_shared<FakeMunge>();
  MungeCluster cluster(munge, "", rules_for(2, 2));
  auto a = cluster.agent(munge), b = cluster.agent(munge, "", false);
  CHECK(a->round().group_world_size() == 2);
  CHECK(b->round().group_world_size() == 2);
}

TEST_CASE("munge: without a credential, or with one of another user or cluster, nobody joins") {
  const auto munge = std::make_shared<FakeMunge>();
  MungeCluster cluster(munge);
  CHECK(cluster.agent(nullptr)->hear<Lost>().why.contains("MUNGE"));
  const auto elsewhere = std::make_shared<FakeMunge>();
  CHECK(cluster.agent(elsewhere)->hear<Lost>().why.contains("Invalid credential"));
  munge->writer = ::geteuid() + 1;
  CHECK(cluster.agent(munge)->hear<Lost>().why.contains("of user"));
  munge->writer = ::geteuid();
  CHECK(cluster.agent(munge)->round().group_world_size() == 1);
}

TEST_CASE("munge: a host that wants no credential is refused by those who need one") {
  const auto munge = std::make_shared<FakeMunge>();
  MungeCluster cluster(nullptr);
  CHECK(cluster.agent(munge)->hear<Lost>().why.contains("does not authenticate by MUNGE"));
  CHECK(cluster.agent(munge, "", false)->round().group_world_size() == 1);
}

TEST_CASE("munge: a recorded credential opens no other connection") {
  Network network;
  const auto busy = boost::asio::make_work_guard(network.loop);  // answers come from a thread
  const auto munge = std::make_shared<FakeMunge>();
  const auto exchange = make_munge_exchange(network.loop, munge, true);
  std::string credential, key;
  exchange->offer("session one", [&](Result<net::KeyExchange::Offer> offer) {
    REQUIRE(offer);
    credential = offer->credential;
    key = offer->key;
  });
  run_until(network.loop, [&] { return !credential.empty(); });
  std::optional<Result<std::string>> same, other;
  exchange->accept("session one", credential, [&](Result<std::string> got) { same = got; });
  exchange->accept("session two", credential, [&](Result<std::string> got) { other = got; });
  run_until(network.loop, [&] { return same && other; });
  CHECK(**same == key);
  REQUIRE(!*other);
  CHECK(other->error().text.contains("another connection"));
}
