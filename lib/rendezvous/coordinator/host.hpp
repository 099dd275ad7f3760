// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/listener.hpp"
#include "rendezvous/coordinator/coordinator.hpp"
#include "spec/rendezvous_config.hpp"
#include "store/server.hpp"

#include <functional>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// A coordinator with the port at which agents find it, in this process. The port can also serve
/// the workers' store of this node (static rendezvous: everybody meets at MASTER_ADDR:MASTER_PORT).
class Host {
 public:
  /// Listens from now on. Fails with Io if the port is taken.
  static Result<std::unique_ptr<Host>> open(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            const net::Listener::Settings& listener,
                                            CoordinatorSettings coordinator);
  /// The same, on the first port of this range that is free, whatever `listener` says.
  static Result<std::unique_ptr<Host>> open(boost::asio::io_context& loop, Clock& clock,
                                            const std::shared_ptr<const net::Sealer>& sealer,
                                            net::Listener::Settings listener,
                                            const CoordinatorSettings& coordinator,
                                            spec::PortRange ports);
  ~Host();

  std::uint16_t port() const { return listener_->port(); }
  Coordinator& coordinator() { return *coordinator_; }
  /// Whether other agents than that of this process are connected.
  bool serves_others() const { return coordinator_->agents() > 1; }
  /// Connections of workers go to these stores from now on: to the next one if none is current, or
  /// the coordinator has given out its round. Without a store they are closed, as before.
  void share_store(const store::Stores& stores);

  /// Ends in good order: agents of a job that is over have `limit` to fetch the last word and go;
  /// agents of one that is not are told that the coordinator goes, because of `why`. Then `retired`
  /// runs on the loop, at once if no agent is left.
  void retire(const std::string& why, bool another_follows, Duration limit,
              std::function<void()> retired);

 private:
  Host(boost::asio::io_context& loop, Clock& clock);
  void finish();

  boost::asio::io_context& loop_;
  Clock& clock_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<Alarm> deadline_;
  std::function<void()> retired_;
};

}  // namespace elastrun::rendezvous
