// SPDX-License-Identifier: Apache-2.0
#include "net/link.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "core/utf8.hpp"
#include "net/endpoint.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <utility>

namespace elastrun::net {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kMaxBacklog = 16u << 20;

std::string refusal_payload(std::string_view text) {
  return json::serialize(json::object{{"do", "refuse"}, {"text", valid_utf8(text)}});
}

}  // namespace

std::shared_ptr<Link> Link::make(tcp::socket socket, std::shared_ptr<const Sealer> sealer,
                                 Side side, std::string refusal) {
  return std::shared_ptr<Link>(
      new Link(std::move(socket), std::move(sealer), side, std::move(refusal)));
}

Link::Link(tcp::socket socket, std::shared_ptr<const Sealer> sealer, Side side, std::string refusal)
    : socket_(std::move(socket)),
      sealer_(std::move(sealer)),
      side_(side),
      refusal_(std::move(refusal)),
      own_(make_greeting()) {}

Link::~Link() = default;

void Link::start(Handlers handlers, std::string first_bytes) {
  handlers_ = std::move(handlers);
  error_code error;
  socket_.non_blocking(true, error);
  // Without it a peer that has lost its network keeps what is being sent, and so us, for a quarter
  // of an hour (tcp(7)).
  const int patience_ms = 30'000;
  ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience_ms,
               sizeof patience_ms);
  in_ = std::move(first_bytes);
  out_ += encode_greeting(own_);
  flush();
  if (in_.empty()) return wait_readable();
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->ended_ || self->closing_) return;
    self->digest();
    if (!self->ended_ && !self->closing_) self->wait_readable();
  });
}

void Link::wait_readable() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
    if (!error && !self->ended_ && !self->closing_) self->read();
  });
}

void Link::read() {
  std::array<char, 16384> buffer;
  error_code error;
  const auto size = socket_.read_some(boost::asio::buffer(buffer), error);
  if (error == boost::asio::error::would_block) return wait_readable();
  if (error == boost::asio::error::eof) {
    return end({Code::Closed, "the other side closed the connection"});
  }
  if (error) return end({Code::Io, error.message()});
  heard_ = true;
  in_.append(buffer.data(), size);
  digest();
  if (!ended_ && !closing_) wait_readable();
}

void Link::digest() {
  if (!reader_ && !digest_greeting()) return;
  while (!ended_ && !closing_ && digest_frame()) {
  }
  if (in_.empty() && in_.capacity() > 4096) in_.shrink_to_fit();
}

bool Link::digest_greeting() {
  auto greeting = take_greeting(in_);
  if (!greeting) {
    end(greeting.error());
    return false;
  }
  if (!*greeting) return false;
  if ((*greeting)->version != kProtocolVersion) {
    const Error mismatch{Code::Protocol,
                         fmt::format("the other side speaks version {} of the protocol, this side "
                                     "version {}: use the same elastrun on all nodes",
                                     (*greeting)->version, kProtocolVersion)};
    end(mismatch);
    return false;
  }
  const bool connector = side_ == Side::Connector;
  const std::string session =
      connector ? own_.nonce + (*greeting)->nonce : (*greeting)->nonce + own_.nonce;
  const auto ours = connector ? Direction::FromConnector : Direction::FromListener;
  const auto theirs = connector ? Direction::FromListener : Direction::FromConnector;
  writer_ = std::make_unique<FrameWriter>(sealer_, ours, session);
  reader_ = std::make_unique<FrameReader>(sealer_, theirs, session);
  reader_->limit(frame_limit_);
  for (const std::string& payload : std::exchange(early_, {})) writer_->write(out_, payload);
  flush();
  return true;
}

bool Link::digest_frame() {
  auto frame = reader_->take(in_);
  if (!frame) {
    if (frame.error().code == Code::Rendezvous) {
      wrong_secret(frame.error());
    } else {
      end(frame.error());
    }
    return false;
  }
  if (!*frame) return false;
  const bool sealed = (*frame)->sealed;
  if (!sealed && (trusted_ || side_ == Side::Listener)) {
    end({Code::Protocol, "the other side sent a frame without a seal"});
    return false;
  }
  trusted_ = trusted_ || sealed;
  if (!sealed) {
    const auto message = parse_json((*frame)->payload);
    end({Code::Rendezvous, printable(message ? member_text_or(*message, "text", "") : "")});
    return false;
  }
  // The handler may close the link or let go of it.
  const auto keep = shared_from_this();
  const auto on_frame = handlers_.on_frame;
  if (on_frame) on_frame(std::move((*frame)->payload));
  return true;
}

void Link::wrong_secret(const Error& error) {
  if (side_ == Side::Listener) {
    write_unsealed(out_, refusal_payload(refusal_.empty() ? error.text : refusal_));
    flush();
    return end({Code::Rendezvous,
                fmt::format("{} does not know this job's secret", remote_address().to_string())});
  }
  end({Code::Rendezvous, trusted_ ? error.text
                                  : "it does not know this job's secret (ELASTRUN_SECRET, or "
                                    "secret_file in --rdzv-conf, must be the same on all nodes)"});
}

void Link::send(std::string_view payload) {
  if (ended_ || closing_) return;
  if (!writer_) {
    early_.emplace_back(payload);
    return;
  }
  writer_->write(out_, payload);
  if (!writing_) flush();
}

void Link::refuse(std::string_view text) {
  if (ended_ || closing_) return;
  if (writer_) writer_->write(out_, refusal_payload(text));
  flush();
  close();
}

void Link::flush() {
  while (!out_.empty()) {
    error_code error;
    const auto sent = socket_.write_some(boost::asio::buffer(out_), error);
    if (error == boost::asio::error::would_block) {
      if (out_.size() > kMaxBacklog) {
        return end({Code::Io, "it does not read what it is sent"});
      }
      return wait_writable();
    }
    if (error) {
      // The reader notices a broken connection; here it only means that nothing can be sent.
      out_.clear();
      break;
    }
    out_.erase(0, sent);
  }
  if (out_.capacity() > 4096) out_.shrink_to_fit();
  error_code ignored;
  if (closing_) socket_.close(ignored);
}

void Link::wait_writable() {
  if (std::exchange(writing_, true)) return;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code error) {
    self->writing_ = false;
    if (error) self->out_.clear();
    self->flush();
  });
}

void Link::end(Error error) {
  if (ended_ || closing_) return;
  ended_ = true;
  error_code ignored;
  // What is still in the socket's buffer goes out: a refusal must arrive before the end.
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  // Not inside the caller: it may have been called by `send` of the very owner.
  boost::asio::post(socket_.get_executor(), [self = shared_from_this(), error = std::move(error)] {
    const auto on_end = std::exchange(self->handlers_, {}).on_end;
    if (on_end && !self->closing_) on_end(error);
  });
}

void Link::close() {
  if (std::exchange(closing_, true)) return;
  // Handlers may hold the owner that is letting go of us right now.
  boost::asio::post(socket_.get_executor(), [handlers = std::exchange(handlers_, {})] {});
  if (ended_) return;
  for (const std::string& payload : std::exchange(early_, {})) {
    if (writer_) writer_->write(out_, payload);
  }
  if (out_.empty()) {
    error_code ignored;
    socket_.close(ignored);
  } else if (!writing_) {
    flush();
  }
}

void Link::frame_limit(std::size_t bytes) {
  frame_limit_ = bytes;
  if (reader_) reader_->limit(bytes);
}

boost::asio::ip::address Link::local_address() const {
  error_code error;
  return plain(socket_.local_endpoint(error).address());
}

boost::asio::ip::address Link::remote_address() const {
  error_code error;
  return plain(socket_.remote_endpoint(error).address());
}

}  // namespace elastrun::net
