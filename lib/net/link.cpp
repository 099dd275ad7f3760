// SPDX-License-Identifier: Apache-2.0
#include "net/link.hpp"

#include "core/json.hpp"
#include "core/text.hpp"
#include "net/endpoint.hpp"
#include "net/frame.hpp"

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

// What a peer may be behind: a round of a large world, and no more where it has stopped reading.
constexpr std::size_t kMaxBacklog = 16u << 20;

std::string refusal_payload(std::string_view text) {
  return json::serialize(json::object{{"type", "refuse"}, {"text", valid_utf8(text)}});
}

}  // namespace

Link::Link(tcp::socket socket, std::shared_ptr<const Sealer> sealer, Side side, std::string refusal)
    : socket_(std::move(socket)),
      sealer_(std::move(sealer)),
      side_(side),
      refusal_(std::move(refusal)),
      own_(make_greeting()) {
  own_.exchanges_keys = sealer_->key_exchange() != nullptr;
}

void Link::start(Handlers handlers, std::string first_bytes) {
  handlers_ = std::move(handlers);
  error_code error;
  socket_.non_blocking(true, error);
  bear_silence({});
  in_ = std::move(first_bytes);
  out_ += encode_greeting(own_);
  flush();
  if (in_.empty()) return wait_readable();
  // Not inside this call, whose caller is still setting up.
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->ended_ || self->closing_) return;
    self->digest();
    if (!self->ended_ && !self->closing_) self->wait_readable();
  });
}

/// Without it a peer that has lost its network keeps what is being sent, and so us, for a quarter
/// of an hour (tcp(7)).
void Link::bear_silence(Duration silence) {
  constexpr Duration kLeast = std::chrono::seconds(30), kMost = std::chrono::days(1);
  const auto limit =
      std::chrono::ceil<std::chrono::milliseconds>(std::clamp(silence, kLeast, kMost));
  const int timeout_ms = static_cast<int>(limit.count());
  ::setsockopt(socket_.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms,
               sizeof timeout_ms);
}

// Waits first and reads then, instead of async_read_some: a read that is under way needs a buffer,
// and of the thousands of links that a coordinator has, nearly all are idle at any moment.
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
  // The bytes are the peer's, who may not be known yet: whatever reads them from here on has to
  // treat them as hostile, and to bound what it keeps.
  in_.append(buffer.data(), size);
  // Nothing is digested while the exchange of keys waits for its service.
  if (exchange_ == Exchange::Running && in_.size() > 2 * frame_limit_) {
    return end({Code::Protocol, "it sends more than it may before it is known"});
  }
  digest();
  if (!ended_ && !closing_) wait_readable();
}

void Link::digest() {
  // In this order, which is the order of the protocol: greeting, credential, frames. Each step
  // returns while its part has not come whole; the next read goes on with it.
  if (session_.empty() && !digest_greeting()) return;
  if (exchange_ == Exchange::Wanted && !digest_credential()) return;
  if (exchange_ == Exchange::Running) return;
  while (!ended_ && !closing_ && digest_frame()) {
  }
  // A coordinator has thousands of links, most of them idle.
  if (in_.empty() && in_.capacity() > 4096) in_.shrink_to_fit();
}

bool Link::digest_greeting() {
  auto greeting = take_greeting(in_);
  if (!greeting) return end(greeting.error()), false;
  if (!*greeting) return false;
  if ((*greeting)->version != kProtocolVersion) {
    const std::string who =
        side_ == Side::Connector ? "the other side" : remote_address().to_string();
    end({Code::Protocol,
         fmt::format("{} speaks version {} of the protocol, this side version {}: use the same "
                     "elastrun on all nodes",
                     who, (*greeting)->version, kProtocolVersion)});
    return false;
  }
  const bool connector = side_ == Side::Connector;
  // In one order on both sides, because every seal is made over it.
  session_ = connector ? own_.nonce + (*greeting)->nonce : (*greeting)->nonce + own_.nonce;
  if (!has_compatible_exchange(**greeting)) return false;
  // The frames that send() has kept are sealed from here on, so this has to come after the session:
  // a seal is made over it.
  if (!own_.exchanges_keys || !(*greeting)->exchanges_keys) {
    begin_frames(sealer_);
  } else if (connector) {
    offer_key();
  } else {
    exchange_ = Exchange::Wanted;
  }
  return true;
}

/// Both do, or both do not, or the side that connects can as well do without.
bool Link::has_compatible_exchange(const Greeting& theirs) {
  if (own_.exchanges_keys == theirs.exchanges_keys) return true;
  const KeyExchange* ours = sealer_->key_exchange();
  if (side_ == Side::Connector) {
    if (ours != nullptr && !ours->is_required()) return true;
    end({Code::Rendezvous,
         ours != nullptr
             ? fmt::format("it does not authenticate by {}, as this node does: is its service "
                           "running there, and does this node need a secret (ELASTRUN_SECRET)?",
                           ours->name())
             : std::string("it authenticates without a secret, by the cluster's MUNGE, which this "
                           "process does not use: is munged running here, or has this node a "
                           "secret (ELASTRUN_SECRET) that the other one has not?")});
    return false;
  }
  if (ours == nullptr) return true;  // the side that has connected decides
  const auto text = fmt::format(
      "agents of this job authenticate by {}, and you sent no credential: is its service running "
      "on your node, or have you a secret (ELASTRUN_SECRET) that this node has not?",
      ours->name());
  write_unsealed(out_, refusal_payload(text));
  flush();
  end({Code::Rendezvous,
       fmt::format("{} sent no credential of {}", remote_address().to_string(), ours->name())});
  return false;
}

void Link::offer_key() {
  exchange_ = Exchange::Running;
  // Not held: it holds the exchange, which would then live until its thread has an answer, maybe
  // longer than the loop that it is to be posted to. Who waits for the socket holds us meanwhile.
  const auto then = [weak = weak_from_this()](Result<KeyExchange::Offer> offer) {
    const auto self = weak.lock();
    if (!self || self->ended_ || self->closing_) return;
    self->exchange_ = Exchange::None;
    if (!offer) return self->end(offer.error());
    // Before begin_frames(), which writes the frames that were kept: the listener takes the first
    // thing that comes after the greeting for the credential.
    write_unsealed(self->out_, offer->credential);
    self->begin_frames(make_sealer(offer->key));
    self->digest();
  };
  // The session is in the credential, so that one that was seen on the wire opens no other link.
  sealer_->key_exchange()->offer(session_, then);
}

bool Link::digest_credential() {
  auto credential = take_unsealed(in_);
  if (!credential) return end(credential.error()), false;
  if (!*credential) return false;
  exchange_ = Exchange::Running;
  const auto then = [weak = weak_from_this()](Result<std::string> key) {
    const auto self = weak.lock();
    if (!self || self->ended_ || self->closing_) return;
    self->exchange_ = Exchange::None;
    if (!key) {
      // A refusal is the last word. Who could not be looked at may try again.
      if (key.error().code == Code::Rendezvous) {
        write_unsealed(self->out_, refusal_payload(key.error().text));
        self->flush();
      }
      return self->end(key.error());
    }
    self->begin_frames(make_sealer(*key));
    self->digest();
  };
  sealer_->key_exchange()->accept(session_, std::move(**credential), then);
  return true;
}

void Link::begin_frames(const std::shared_ptr<const Sealer>& sealer) {
  frames_.emplace(sealer, side_, session_);
  // In the order in which they were sent: each seal counts, and the other side expects number 0
  // first.
  for (const std::string& payload : std::exchange(early_, {})) frames_->write(out_, payload);
  flush();
}

bool Link::digest_frame() {
  auto frame = frames_->take(in_, frame_limit_);
  if (!frame) {
    frame.error().code == Code::Rendezvous ? wrong_secret(frame.error()) : end(frame.error());
    return false;
  }
  if (!*frame) return false;
  const bool sealed = (*frame)->sealed;
  // Without a seal there is only the refusal of a listener that cannot make one; after a sealed
  // word, or to a listener, it can be anybody's.
  if (!sealed && (trusted_ || side_ == Side::Listener)) {
    return end({Code::Protocol, "the other side sent a frame without a seal"}), false;
  }
  trusted_ = trusted_ || sealed;
  if (!sealed) {
    const auto message = parse_json((*frame)->payload);
    return end({Code::Rendezvous, printable(message ? member_text_or(*message, "text", "") : "")}),
           false;
  }
  // The handler may close the link or let go of it.
  const auto keep = shared_from_this();
  // A copy: close() in the handler takes handlers_ away, and with it the function that runs.
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
  return end(
      {Code::Rendezvous, trusted_ ? error.text
                                  : "it does not know this job's secret (ELASTRUN_SECRET, or "
                                    "secret_file in --rdzv-conf, must be the same on all nodes)"});
}

void Link::send(std::string_view payload) {
  if (ended_ || closing_) return;
  if (!frames_) {
    // A seal needs the session, which the greeting of the other side completes.
    early_.emplace_back(payload);
    return;
  }
  frames_->write(out_, payload);
  // A write that waits takes this along; to try now would only meet the full buffer again.
  if (!writing_) return flush();
  // Here as well as in flush(), which does not run while a write waits: a peer that has stopped to
  // read would let this grow until memory ends.
  if (out_.size() > kMaxBacklog) end({Code::Io, "it does not read what it is sent"});
}

void Link::refuse(std::string_view text) {
  if (ended_ || closing_) return;
  if (frames_) frames_->write(out_, refusal_payload(text));
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
    // A socket that does not block may take a part (send(2)): the rest is tried at once, and the
    // kernel's EAGAIN ends the loop.
    out_.erase(0, sent);
  }
  if (out_.capacity() > 4096) out_.shrink_to_fit();
  error_code ignored;
  // Only when all is out: close() in the middle would cut off the last words, say a refusal.
  if (closing_) socket_.close(ignored);
}

void Link::wait_writable() {
  // One wait at a time: two of them would both flush, and each hold the link alive.
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

void Link::hold() {
  early_.clear();
  // Handlers may hold the owner that is letting go of us right now.
  boost::asio::post(socket_.get_executor(), [handlers = std::exchange(handlers_, {})] {});
}

void Link::close() {
  if (std::exchange(closing_, true)) return;
  // Handlers may hold the owner that is letting go of us right now.
  boost::asio::post(socket_.get_executor(), [handlers = std::exchange(handlers_, {})] {});
  if (ended_) return;
  bear_silence({});
  for (const std::string& payload : std::exchange(early_, {})) {
    if (frames_) frames_->write(out_, payload);
  }
  if (out_.empty()) {
    error_code ignored;
    socket_.close(ignored);
  } else if (!writing_) {
    flush();
  }
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
