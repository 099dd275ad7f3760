// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "export/metrics_sink.hpp"
#include "export/piece_queue.hpp"
#include "export/statsd.hpp"
#include "net/endpoint.hpp"
#include "net/resolver.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>

namespace elastrun::exporter {

/// Sends datagrams of StatsD to a host. StatsD never answers, so only those count as lost that this
/// machine could not send, or that waited too long for the host's address.
class StatsdSink final : public MetricsSink {
 public:
  static constexpr std::uint16_t kPort = 8125;
  StatsdSink(boost::asio::io_context& loop, Clock& clock, std::string name, net::Endpoint endpoint,
             StatsdOptions options = {});
  bool is_told() const override { return false; }
  std::optional<telemetry::Cursor::Temporality> pulls() const override {
    return telemetry::Cursor::Temporality::Delta;
  }
  void pull(const telemetry::Snapshot& snapshot) override;
  void finish(std::function<void()> done) override;
  SinkAccount account() const override;

 private:
  static constexpr std::size_t kMost = 256 << 10;  // bytes that wait for the address
  void look_up();
  Status connect(const net::Addresses& addresses);
  void send();
  void failed(std::string trouble);

  const net::Endpoint endpoint_;
  const StatsdOptions options_;
  net::Resolver resolver_;
  boost::asio::ip::udp::socket socket_;  // open: it is connected
  bool looking_up_ = false;
  PieceQueue queue_{kMost};
  std::uint64_t delivered_ = 0, lost_ = 0;
  std::string trouble_;
  std::function<void()> finished_;
};

}  // namespace elastrun::exporter
