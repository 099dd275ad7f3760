// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "rendezvous/round.hpp"
#include "store/server.hpp"
#include "workers/held_port.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace elastrun::agent {

/// The store that this node would serve to the workers of a round, if it got group rank 0. It
/// listens before the node joins, so the announced port cannot be taken by anybody else; each round
/// gets a fresh one.
class RoundStore {
 public:
  virtual ~RoundStore() = default;
  /// Before each join: the port to announce. Fails with Store (port in use, ...).
  virtual Result<std::uint16_t> prepare() = 0;
  /// The round is known: serve it, or close when another node has group rank 0.
  virtual void begin(const rendezvous::Round& round) = 0;
  /// False when workers are to host the store themselves (TORCH_DISABLE_SHARE_RDZV_TCP_STORE).
  virtual bool serves_workers() const = 0;
};

struct RoundStoreSettings {
  std::string address;     // where to listen
  std::uint16_t port = 0;  // 0: any free port, a new one for each round
  bool serves_workers = true;
};

std::unique_ptr<RoundStore> make_round_store(boost::asio::io_context& loop,
                                             RoundStoreSettings settings);

}  // namespace elastrun::agent
