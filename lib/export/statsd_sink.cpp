// SPDX-License-Identifier: Apache-2.0
#include "export/statsd_sink.hpp"

#include "core/log.hpp"

#include <boost/asio/buffer.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::exporter {

using boost::asio::ip::udp;

StatsdSink::StatsdSink(boost::asio::io_context& loop, Clock& clock, std::string name,
                       net::Endpoint endpoint, StatsdOptions options)
    : MetricsSink(std::move(name)),
      endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      resolver_(loop, clock),
      socket_(loop) {
  look_up();
}

void StatsdSink::look_up() {
  // The end of a job may wait for it, see finish().
  constexpr Duration kLimit = std::chrono::seconds(5);
  looking_up_ = true;
  resolver_.resolve(endpoint_.host, kLimit, [this](const Result<net::Addresses>& found) {
    looking_up_ = false;
    const auto connected = found ? connect(*found) : std::unexpected(found.error());
    if (!connected) failed(connected.error().text);
    send();
    if (const auto finished = std::exchange(finished_, {})) finished();
  });
}

Status StatsdSink::connect(const net::Addresses& addresses) {
  boost::system::error_code error;
  for (const auto& address : addresses) {
    const udp::endpoint target(address, endpoint_.port);
    socket_.close(error);
    socket_.open(target.protocol(), error);
    if (!error) socket_.non_blocking(true, error);
    if (error) continue;
    // A connected UDP socket hears of refusals (ICMP), so lost datagrams can be counted.
    socket_.connect(target, error);
    if (!error) return {};
  }
  boost::system::error_code ignored;
  socket_.close(ignored);
  return fail(Code::Io, fmt::format("{}: {}", net::format_endpoint(endpoint_.host, endpoint_.port),
                                    error.message()));
}

void StatsdSink::failed(std::string trouble) {
  if (!trouble_.empty()) return;
  trouble_ = std::move(trouble);
  log::warning("metrics", "{}: {}; what cannot be sent is lost", name(), trouble_);
}

void StatsdSink::pull(const telemetry::Snapshot& snapshot) {
  for (auto& datagram : statsd_datagrams(snapshot, options_)) queue_.add(std::move(datagram));
  // With each pull: a host that had no address at the start of the job, say in Kubernetes, may have
  // one now.
  if (!socket_.is_open() && !looking_up_) look_up();
  send();
}

/// UDP reports an error on the next send: the count is right all the same.
void StatsdSink::send() {
  if (!socket_.is_open()) return;
  for (auto left = queue_.size(); left > 0; --left) {
    const auto datagram = queue_.take(1);
    boost::system::error_code error;
    socket_.send(boost::asio::buffer(datagram.front()), 0, error);
    (error ? lost_ : delivered_) += 1;
    if (error) failed(error.message());
  }
}

void StatsdSink::finish(std::function<void()> done) {
  send();
  if (!looking_up_) return done();
  finished_ = std::move(done);
}

SinkAccount StatsdSink::account() const {
  const auto waiting = queue_.size();
  return {name(), delivered_, lost_ + queue_.dropped() + waiting, trouble_, waiting};
}

}  // namespace elastrun::exporter
