// SPDX-License-Identifier: Apache-2.0
// The only file that includes Boost.Beast's client side and Asio's TLS.
#include "net/http_call.hpp"

#include "core/text.hpp"
#include "net/dialer.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/version.hpp>
#include <cerrno>
#include <fmt/format.h>
#include <optional>
#include <sys/socket.h>
#include <utility>
#include <variant>

namespace elastrun::net {
namespace {

namespace http = boost::beast::http;
namespace ssl = boost::asio::ssl;
using boost::asio::ip::tcp;
using boost::system::error_code;

Error tls_error(std::string_view what, const std::string& file, const error_code& error) {
  return {Code::Usage, fmt::format("cannot use the {} in \"{}\": {}", what, file, error.message())};
}

Code code_of(const error_code& error) {
  if (error.category() == boost::asio::error::get_ssl_category()) return Code::Usage;
  if (error == boost::asio::error::eof || error == http::error::end_of_stream ||
      error == http::error::partial_message || error == boost::asio::error::connection_reset ||
      // OpenSSL tells an end without TLS's close_notify apart from a clean one. Servers that are
      // killed send none, so for a caller it is the same: the server has gone.
      error == ssl::error::stream_truncated) {
    return Code::Closed;
  }
  return error.category() == boost::system::system_category() ? Code::Io : Code::Protocol;
}

using TlsStream = ssl::stream<tcp::socket>;

}  // namespace

struct KeptConnection::Stream {
  std::variant<tcp::socket, TlsStream> of;
  tcp::socket& socket() {
    auto* tls = std::get_if<TlsStream>(&of);
    return tls != nullptr ? tls->next_layer() : std::get<tcp::socket>(of);
  }
};

KeptConnection::KeptConnection(Clock& clock) : clock_(clock), alarm_(clock.make_alarm()) {}
KeptConnection::~KeptConnection() = default;

void KeptConnection::keep(const Endpoint& endpoint, std::unique_ptr<Stream> stream) {
  // Longer than the pause between two renewals of a lease. An agent that only follows has no use
  // for it, and a server none for thousands of them.
  constexpr auto kIdle = std::chrono::seconds(10);
  endpoint_ = endpoint;
  stream_ = std::move(stream);
  alarm_->arm(clock_.now() + kIdle, [this] { stream_.reset(); });
}

std::unique_ptr<KeptConnection::Stream> KeptConnection::take(const Endpoint& endpoint) {
  if (!stream_ || endpoint_.host != endpoint.host || endpoint_.port != endpoint.port) {
    return nullptr;
  }
  alarm_->disarm();
  // Nothing is to come: it is the end, or a server that we do not understand.
  char byte = 0;
  const auto got = ::recv(stream_->socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  const bool quiet = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  auto stream = std::exchange(stream_, nullptr);
  return quiet ? std::move(stream) : nullptr;
}

namespace {

// What is longer ends the connection.
constexpr std::size_t kMaxBody = 4u << 20;

/// A request and its answer. The operations in progress keep it alive.
class Call : public std::enable_shared_from_this<Call> {
 public:
  using Answer = std::function<void(Result<HttpResponse>)>;

  Call(boost::asio::io_context& loop, Clock& clock, HttpCall::Settings settings,
       const HttpRequest& request, Answer answer)
      : clock_(clock),
        settings_(std::move(settings)),
        answer_(std::move(answer)),
        dialer_(loop, clock),
        alarm_(clock.make_alarm()),
        request_{http::string_to_verb(request.method), request.target, 11} {
    request_.set(http::field::host, where());
    request_.set(http::field::user_agent, "elastrun");
    request_.set(http::field::content_type, "application/json");
    if (settings_.kept == nullptr) request_.set(http::field::connection, "close");
    for (const auto& [name, value] : request.headers) request_.set(name, value);
    request_.body() = request.body;
    // After the body is set: it counts that for Content-Length, without which a server waits for
    // the end of a body that never comes.
    request_.prepare_payload();
  }

  void start() {
    if (settings_.kept != nullptr) stream_ = settings_.kept->take(settings_.endpoint);
    if (!stream_) return dial();
    is_kept_ = true;
    limit(clock_.now() + settings_.limit);
    // It has shaken hands for an earlier call: a second handshake would be taken for data.
    write();
  }

  void drop() {
    answer_ = {};
    dialer_.cancel();
    end(fail(Code::Cancelled, {}));
  }

 private:
  std::string where() const {
    return format_endpoint(settings_.endpoint.host, settings_.endpoint.port);
  }

  void limit(TimePoint deadline) {
    alarm_->arm(deadline, [this] {
      end(fail(Code::Timeout, fmt::format("{} did not answer within {}", where(),
                                          format_duration(settings_.limit))));
    });
  }

  void dial() {
    const TimePoint deadline = clock_.now() + settings_.limit;
    dialer_.dial(settings_.endpoint, settings_.limit, [this, deadline](Result<tcp::socket> socket) {
      if (!socket) return end(std::unexpected(socket.error()));
      limit(deadline);
      settings_.tls ? shake_hands(std::move(*socket)) : begin(std::move(*socket));
    });
  }

  void begin(tcp::socket socket) {
    stream_.reset(new KeptConnection::Stream{std::move(socket)});
    write();
  }

  void shake_hands(tcp::socket socket) {
    stream_.reset(new KeptConnection::Stream{TlsStream(std::move(socket), *settings_.tls)});
    auto& stream = std::get<TlsStream>(stream_->of);
    error_code ignored;
    const std::string& host = settings_.endpoint.host;
    // verify_peer alone accepts a valid certificate of any host: the name has to be compared, too.
    stream.set_verify_callback(ssl::host_name_verification(host), ignored);
    // Servers with several certificates choose by this name; numbers are not allowed in it (RFC
    // 6066).
    if (parse_address(host).is_unspecified()) {
      SSL_set_tlsext_host_name(stream.native_handle(), host.c_str());
    }
    stream.async_handshake(ssl::stream_base::client, [self = shared_from_this()](error_code error) {
      error ? self->broken(error) : self->write();
    });
  }

  void write() {
    const auto then = [self = shared_from_this()](error_code error, auto) {
      error ? self->broken(error) : self->read();
    };
    std::visit([&](auto& stream) { http::async_write(stream, request_, then); }, stream_->of);
  }

  void read() {
    buffer_.clear();
    parser_.emplace().body_limit(kMaxBody);
    const auto then = [self = shared_from_this()](error_code error, auto) {
      error ? self->broken(error) : self->answered();
    };
    std::visit([&](auto& stream) { http::async_read(stream, buffer_, *parser_, then); },
               stream_->of);
  }

  void answered() {
    auto& answer = parser_->get();
    const auto retry = answer[http::field::retry_after];
    error_code ignored;
    end(HttpResponse{static_cast<int>(answer.result_int()), std::move(answer.body()),
                     std::string(retry),
                     plain(stream_->socket().local_endpoint(ignored).address())});
  }

  void broken(const error_code& error) {
    // The server may have closed a kept connection meanwhile. As it has answered nothing, the
    // request goes out once more.
    if (std::exchange(is_kept_, false) && !(parser_ && parser_->got_some())) {
      alarm_->disarm();
      close();
      return dial();
    }
    if (error == http::error::body_limit)
      return end(fail(Code::Protocol, "the answer is longer than 4 MiB"));
    end(fail(code_of(error), fmt::format("{}: {}", where(), error.message())));
  }

  void end(Result<HttpResponse> response) {
    alarm_->disarm();
    is_kept_ = false;  // what is cancelled by close() must not send the request once more
    // Bytes behind a whole answer belong to no request of ours. A connection that has them is out
    // of step: the next answer would be taken for another question's.
    if (response && answer_ && settings_.kept != nullptr && parser_->keep_alive() &&
        buffer_.size() == 0) {
      settings_.kept->keep(settings_.endpoint, std::move(stream_));
    } else {
      close();
    }
    // Taken out first: it may destroy the call, and start the next one on the connection that was
    // kept just now.
    if (const auto answer = std::exchange(answer_, {})) answer(std::move(response));
  }

  // Without TLS's farewell: the other side has said what it had to say, or is cut off.
  void close() {
    error_code ignored;
    if (stream_) stream_->socket().close(ignored);
  }

  Clock& clock_;
  const HttpCall::Settings settings_;
  Answer answer_;
  Dialer dialer_;
  std::unique_ptr<Alarm> alarm_;
  bool is_kept_ = false;  // the stream has answered an earlier call, and nothing for this one
  std::unique_ptr<KeptConnection::Stream> stream_;
  http::request<http::string_body> request_;
  std::optional<http::response_parser<http::string_body>> parser_;
  boost::beast::flat_buffer buffer_{64 << 10};
};

struct Handle final : HttpCall {
  explicit Handle(std::shared_ptr<Call> made) : call(std::move(made)) {}
  ~Handle() override { call->drop(); }
  std::shared_ptr<Call> call;
};

}  // namespace

Result<std::shared_ptr<TlsClient>> load_tls(const TlsFiles& files) {
  auto client = std::make_shared<TlsClient>(ssl::context::tls_client);
  error_code error;
  // A context of OpenSSL checks nothing unless told to: SSL_CTX_set_verify(3) has SSL_VERIFY_NONE
  // as its default, with which a client goes on after any certificate.
  client->set_verify_mode(ssl::verify_peer, error);
  files.ca.empty() ? client->set_default_verify_paths(error)
                   : client->load_verify_file(files.ca, error);
  if (error) return std::unexpected(tls_error("certificates of authorities", files.ca, error));
  if (files.cert.empty()) return client;
  client->use_certificate_chain_file(files.cert, error);
  if (error) return std::unexpected(tls_error("certificate", files.cert, error));
  client->use_private_key_file(files.key, ssl::context::pem, error);
  if (error) return std::unexpected(tls_error("private key", files.key, error));
  return client;
}

std::unique_ptr<HttpCall> fetch(boost::asio::io_context& loop, Clock& clock,
                                HttpCall::Settings settings, HttpRequest request,
                                std::function<void(Result<HttpResponse>)> answer) {
  const auto call =
      std::make_shared<Call>(loop, clock, std::move(settings), request, std::move(answer));
  call->start();
  return std::make_unique<Handle>(call);
}

}  // namespace elastrun::net
