// SPDX-License-Identifier: Apache-2.0
#include "store/blocking_store.hpp"

#include "core/system_clock.hpp"
#include "net/dialer.hpp"
#include "store/client.hpp"
#include "store/file_store.hpp"

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <optional>

namespace elastrun::store {

/// The loop with the store that lives on it, shared by all prefixes.
struct BlockingStore::Engine {
  boost::asio::io_context loop{1};
  std::unique_ptr<Clock> clock = make_system_clock(loop.get_executor());
  std::unique_ptr<Store> store;

  /// Runs the loop until `begin` has handed an answer to the function that it is given.
  template <class Answer, class Begin>
  Answer await(Begin begin) {
    // Shared, because a request that was given up may still be answered later.
    const auto answer = std::make_shared<std::optional<Answer>>();
    begin([answer](Answer value) { answer->emplace(std::move(value)); });
    // A loop that ran out of work stays stopped otherwise.
    loop.restart();
    while (!*answer) {
      if (loop.run_one() == 0) return fail(Code::Closed, "the store has gone");
    }
    return std::move(**answer);
  }
};

BlockingStore::~BlockingStore() = default;

Result<std::shared_ptr<BlockingStore>> BlockingStore::connect(const std::string& host,
                                                              std::uint16_t port,
                                                              Duration timeout) {
  using Connected = Result<std::unique_ptr<TcpClient>>;
  auto engine = std::make_shared<Engine>();
  const TimePoint until = engine->clock->now() + timeout;
  net::Resolver resolver(engine->loop, *engine->clock);
  const auto found = engine->await<Result<net::Addresses>>(
      [&](auto done) { resolver.resolve(host, timeout, std::move(done)); });
  if (!found) return std::unexpected(found.error());
  Error last{Code::Io, fmt::format("the host \"{}\" has no address", host)};
  for (const auto& address : *found) {
    const Duration left = std::max<Duration>(until - engine->clock->now(), Duration::zero());
    auto client = engine->await<Connected>([&](auto done) {
      TcpClient::connect(engine->loop, *engine->clock, {address, port},
                         // A share for each address, so that a dead first one does not use up the
                         // time of the others.
                         left / static_cast<int>(found->size()), std::move(done));
    });
    if (!client) {
      last = client.error();
      continue;
    }
    engine->store = std::move(*client);
    return std::shared_ptr<BlockingStore>(new BlockingStore(std::move(engine), {}));
  }
  return std::unexpected(last);
}

Result<std::shared_ptr<BlockingStore>> BlockingStore::open_file(const std::string& path) {
  auto engine = std::make_shared<Engine>();
  // -1: how many use the file is unknown, so none of them removes it.
  auto store = FileStore::open(engine->loop, *engine->clock, path, -1);
  if (!store) return std::unexpected(store.error());
  engine->store = std::move(*store);
  return std::shared_ptr<BlockingStore>(new BlockingStore(std::move(engine), {}));
}

std::shared_ptr<BlockingStore> BlockingStore::within(const std::string& prefix) const {
  return std::shared_ptr<BlockingStore>(new BlockingStore(engine_, prefix_ + prefix + "/"));
}

std::vector<std::string> BlockingStore::with_prefix(const std::vector<std::string>& keys) const {
  std::vector<std::string> full;
  for (const auto& key : keys) full.push_back(prefix_ + key);
  return full;
}

Status BlockingStore::set(const std::string& key, std::string value) {
  return engine_->await<Status>(
      [&](auto done) { engine_->store->set(prefix_ + key, std::move(value), std::move(done)); });
}

Result<std::string> BlockingStore::get(const std::string& key, Duration timeout) {
  return engine_->await<Result<std::string>>(
      [&](auto done) { engine_->store->get(prefix_ + key, timeout, std::move(done)); });
}

Result<std::int64_t> BlockingStore::add(const std::string& key, std::int64_t delta) {
  return engine_->await<Result<std::int64_t>>(
      [&](auto done) { engine_->store->add(prefix_ + key, delta, std::move(done)); });
}

Result<std::string> BlockingStore::compare_set(const std::string& key, std::string expected,
                                               std::string desired) {
  return engine_->await<Result<std::string>>([&](auto done) {
    engine_->store->compare_set(prefix_ + key, std::move(expected), std::move(desired),
                                std::move(done));
  });
}

Result<bool> BlockingStore::check(const std::vector<std::string>& keys) {
  return engine_->await<Result<bool>>(
      [&](auto done) { engine_->store->check(with_prefix(keys), std::move(done)); });
}

Status BlockingStore::wait(const std::vector<std::string>& keys, Duration timeout) {
  return engine_->await<Status>(
      [&](auto done) { engine_->store->wait(with_prefix(keys), timeout, std::move(done)); });
}

Result<bool> BlockingStore::erase(const std::string& key) {
  return engine_->await<Result<bool>>(
      [&](auto done) { engine_->store->erase(prefix_ + key, std::move(done)); });
}

}  // namespace elastrun::store
