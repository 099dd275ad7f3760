// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "net/frame.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace elastrun::net {

/// One connection that carries sealed frames, after both sides have greeted each other. Made with a
/// connected socket by either side; lives as long as an owner holds it or a frame is on its way out
/// (hence shared: the kernel completes reads and writes after its owner has let go).
class Link : public std::enable_shared_from_this<Link> {
 public:
  struct Handlers {
    std::function<void(std::string payload)> on_frame;
    /// The connection is over: Closed (by the other side, in order), Io (broken), Protocol, or
    /// Rendezvous (it does not know the secret, or refuses us; the text says why). Called once,
    /// never after close().
    std::function<void(Error)> on_end;
  };
  using Side = net::Side;

  /// `refusal`: what the other side is told when its secret is not ours (listeners only).
  Link(boost::asio::ip::tcp::socket socket, std::shared_ptr<const Sealer> sealer, Side side,
       std::string refusal = {});

  /// Begins to talk. `first_bytes` were already read from the socket. No handler is called inside.
  void start(Handlers handlers, std::string first_bytes = {});
  /// Sends, or keeps until the other side has greeted. A peer that does not read while 16 MiB pile
  /// up is cut off.
  void send(std::string_view payload);
  /// Sends why the other side is not wanted, and closes. on_end is not called.
  void refuse(std::string_view text);
  /// Says and hears nothing more, but leaves the connection open until close() or the other side's
  /// end. on_end is not called.
  void hold();
  /// Closes once everything is out; a peer that does not take it has 30 s. on_end is not called.
  void close();
  void frame_limit(std::size_t bytes) { frame_limit_ = bytes; }
  /// How long the network may take nothing of what is sent before the connection counts as broken:
  /// 30 s, or as long as the silence of the other side is borne, if that is longer.
  void bear_silence(Duration silence);

  boost::asio::ip::address local_address() const;
  boost::asio::ip::address remote_address() const;
  /// True if anything has come since the last call.
  bool heard() { return std::exchange(heard_, false); }

 private:
  void wait_readable();
  void read();
  void digest();
  bool digest_greeting();
  bool digest_frame();
  bool has_compatible_exchange(const Greeting& theirs);
  void offer_key();
  bool digest_credential();
  void begin_frames(const std::shared_ptr<const Sealer>& sealer);
  void wrong_secret(const Error& error);
  void flush();
  void wait_writable();
  void end(Error error);

  boost::asio::ip::tcp::socket socket_;
  const std::shared_ptr<const Sealer> sealer_;
  const Side side_;
  const std::string refusal_;
  Greeting own_;
  Handlers handlers_;
  std::string session_;  // once the other side has greeted
  enum class Exchange { None, Wanted, Running } exchange_ = Exchange::None;
  std::optional<Frames> frames_;    // then, or after the exchange of a key
  std::vector<std::string> early_;  // to be sent then
  std::string in_, out_;
  std::size_t frame_limit_ = 64 << 10;
  bool trusted_ = false;  // a frame has proved that the other side knows the secret
  bool heard_ = true, ended_ = false, closing_ = false, writing_ = false;
};

}  // namespace elastrun::net
