// SPDX-License-Identifier: Apache-2.0
#include "agent/round_store.hpp"

namespace elastrun::agent {
namespace {

/// A TCPStore server of our own.
class ServedStore final : public RoundStore {
 public:
  ServedStore(boost::asio::io_context& loop, RoundStoreSettings settings)
      : loop_(loop), settings_(std::move(settings)) {}

  Result<std::uint16_t> prepare() override {
    if (settings_.port == 0) server_.reset();
    if (server_) {
      server_->start_afresh();
      return server_->port();
    }
    auto server = store::Server::listen(loop_, settings_.address, settings_.port, {});
    if (!server) return std::unexpected(server.error());
    server_ = std::move(*server);
    return server_->port();
  }

  void begin(const rendezvous::Round& round) override {
    if (round.group_rank != 0) server_.reset();
  }

  bool serves_workers() const override { return true; }

 private:
  boost::asio::io_context& loop_;
  const RoundStoreSettings settings_;
  std::unique_ptr<store::Server> server_;
};

/// A port for worker 0.
class WorkersStore final : public RoundStore {
 public:
  Result<std::uint16_t> prepare() override {
    held_.reset();
    auto held = workers::HeldPort::any();
    if (!held) return std::unexpected(held.error());
    held_ = std::move(*held);
    return held_->number();
  }
  void begin(const rendezvous::Round& round) override {
    if (round.group_rank != 0) held_.reset();
  }
  bool serves_workers() const override { return false; }

 private:
  std::optional<workers::HeldPort> held_;
};

}  // namespace

std::unique_ptr<RoundStore> make_round_store(boost::asio::io_context& loop,
                                             RoundStoreSettings settings) {
  if (!settings.serves_workers) return std::make_unique<WorkersStore>();
  return std::make_unique<ServedStore>(loop, std::move(settings));
}

}  // namespace elastrun::agent
