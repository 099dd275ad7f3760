// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/host.hpp"

#include "store/server.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace elastrun::rendezvous {

using boost::asio::ip::tcp;

Host::Host(boost::asio::io_context& loop, Clock& clock)
    : loop_(loop), clock_(clock), deadline_(clock.make_alarm()) {}
Host::~Host() = default;

Result<std::unique_ptr<Host>> Host::open(boost::asio::io_context& loop, Clock& clock,
                                         std::shared_ptr<const net::Sealer> sealer,
                                         const net::Listener::Settings& listener,
                                         CoordinatorSettings coordinator) {
  std::unique_ptr<Host> host(new Host(loop, clock));
  host->coordinator_ =
      std::make_unique<Coordinator>(loop, clock, std::move(sealer), std::move(coordinator));
  net::Listener::Takers takers;
  // A raw pointer, since the listener is a part of the host.
  takers.agent = [host = host.get()](tcp::socket socket, std::string first_bytes) {
    host->coordinator_->serve(std::move(socket), std::move(first_bytes));
  };
  auto opened = net::Listener::open(loop, clock, listener, std::move(takers));
  if (!opened) return std::unexpected(opened.error());
  host->listener_ = std::move(*opened);
  return host;
}

Result<std::unique_ptr<Host>> Host::open(boost::asio::io_context& loop, Clock& clock,
                                         const std::shared_ptr<const net::Sealer>& sealer,
                                         net::Listener::Settings listener,
                                         const CoordinatorSettings& coordinator,
                                         spec::PortRange ports) {
  Result<std::unique_ptr<Host>> opened = fail(Code::Io, "no port is given");
  for (int port = ports.first; !opened && port <= ports.last; ++port) {
    listener.port = static_cast<std::uint16_t>(port);
    opened = open(loop, clock, sealer, listener, coordinator);
  }
  return opened;
}

void Host::share_store(const store::Stores& stores) {
  if (stores.current == nullptr && stores.next == nullptr) return listener_->take_stores({});
  listener_->take_stores([this, stores](tcp::socket socket, std::string first_bytes) {
    // A world that has been given out may have workers before this node hears of it; until then
    // only those of the last one run.
    const bool is_given_out = !coordinator_->is_needed();
    const bool is_next = stores.next != nullptr && (is_given_out || stores.current == nullptr);
    (is_next ? stores.next : stores.current)->adopt(std::move(socket), std::move(first_bytes));
  });
}

void Host::retire(const std::string& why, bool another_follows, Duration limit,
                  std::function<void()> retired) {
  retired_ = std::move(retired);
  if (!why.empty()) coordinator_->resign(why, another_follows);
  if (coordinator_->agents() == 0) return finish();
  coordinator_->on_deserted([this] { finish(); });
  deadline_->arm(clock_.now() + limit, [this] { finish(); });
}

void Host::finish() {
  deadline_->disarm();
  coordinator_->on_deserted({});
  if (retired_) boost::asio::post(loop_, std::exchange(retired_, {}));
}

}  // namespace elastrun::rendezvous
