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
using Answer = std::function<void(Result<HttpResponse>)>;

/// The part that both kinds of stream share. The operations in progress keep it alive.
template <class Stream>
class Exchange : public std::enable_shared_from_this<Exchange<Stream>> {
 public:
  /// Runs if a kept connection turned out to be closed before anything came.
  using Again = std::function<void(Answer)>;

  Exchange(Stream stream, Clock& clock, HttpCall::Settings settings, const HttpRequest& request,
           Answer answer, Again again)
      : again_(std::move(again)),
        stream_(std::move(stream)),
        alarm_(clock.make_alarm()),
        clock_(clock),
        settings_(std::move(settings)),
        answer_(std::move(answer)) {
    const auto method = http::string_to_verb(request.method);
    request_ = {method, request.target, 11};
    request_.set(http::field::host,
                 format_endpoint(settings_.endpoint.host, settings_.endpoint.port));
    request_.set(http::field::user_agent, "elastrun");
    request_.set(http::field::content_type, "application/json");
    if (settings_.kept == nullptr) request_.set(http::field::connection, "close");
    for (const auto& [name, value] : request.headers) request_.set(name, value);
    request_.body() = request.body;
    // After the body is set: it counts that for Content-Length, without which a server waits for
    // the end of a body that never comes.
    request_.prepare_payload();
    parser_.body_limit(kMaxBody);
  }

  void start(TimePoint deadline) {
    // The alarm holds us, and we hold the alarm: end(), broken() and drop() break that circle by
    // disarming it, so each way out of here has to pass through one of them.
    auto self = this->shared_from_this();
    alarm_->arm(deadline, [self] {
      self->end(fail(Code::Timeout, fmt::format("{} did not answer within {}", self->where(),
                                                format_duration(self->settings_.limit))));
    });
    // Over a kept connection a second handshake would be taken for data.
    if (again_) return write();  // has shaken hands for an earlier call
    if constexpr (requires { stream_.next_layer(); }) {
      stream_.async_handshake(ssl::stream_base::client, [self](error_code error) {
        error ? self->broken(error) : self->write();
      });
    } else {
      write();
    }
  }

  void drop() {
    alarm_->disarm();
    answer_ = {};
    again_ = {};
    close();
  }

 private:
  std::string where() const {
    return format_endpoint(settings_.endpoint.host, settings_.endpoint.port);
  }

  void write() {
    http::async_write(stream_, request_, [self = this->shared_from_this()](error_code error, auto) {
      error ? self->broken(error) : self->read();
    });
  }

  void read() {
    http::async_read(stream_, buffer_, parser_,
                     [self = this->shared_from_this()](error_code error, auto) {
                       error ? self->broken(error) : self->answered();
                     });
  }

  void answered() {
    auto& answer = parser_.get();
    const auto retry = answer[http::field::retry_after];
    error_code ignored;
    end(HttpResponse{static_cast<int>(answer.result_int()), std::move(answer.body()),
                     std::string(retry), plain(socket().local_endpoint(ignored).address())});
  }

  void broken(const error_code& error) {
    // The server may have closed a kept connection meanwhile. As it has answered nothing, the
    // request goes out once more.
    if (const auto again = std::exchange(again_, {}); again && !parser_.got_some()) {
      alarm_->disarm();
      close();
      return again(std::exchange(answer_, {}));
    }
    if (error == http::error::body_limit)
      return end(fail(Code::Protocol, "the answer is longer than 4 MiB"));
    end(fail(code_of(error), fmt::format("{}: {}", where(), error.message())));
  }

  void end(Result<HttpResponse> response) {
    alarm_->disarm();
    again_ = {};  // what is cancelled by close() must not send the request once more
    // Bytes behind a whole answer belong to no request of ours. A connection that has them is out
    // of step: the next answer would be taken for another question's.
    if (response && answer_ && settings_.kept != nullptr && parser_.keep_alive() &&
        buffer_.size() == 0) {
      settings_.kept->keep(settings_.endpoint, std::make_unique<KeptConnection::Stream>(
                                                   KeptConnection::Stream{std::move(stream_)}));
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
    socket().close(ignored);
  }
  tcp::socket& socket() {
    if constexpr (requires { stream_.next_layer(); }) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  Again again_;
  Stream stream_;
  std::unique_ptr<Alarm> alarm_;
  Clock& clock_;
  const HttpCall::Settings settings_;
  Answer answer_;
  http::request<http::string_body> request_;
  http::response_parser<http::string_body> parser_;
  boost::beast::flat_buffer buffer_{64 << 10};
};

class DialledCall final : public HttpCall {
 public:
  DialledCall(boost::asio::io_context& loop, Clock& clock) : clock_(clock), dialer_(loop, clock) {}
  ~DialledCall() override {
    if (drop_) drop_();
  }

  void start(Settings settings, HttpRequest request, Answer answer) {
    settings_ = std::move(settings);
    request_ = std::move(request);
    auto stream = settings_.kept != nullptr ? settings_.kept->take(settings_.endpoint) : nullptr;
    if (!stream) return dial(std::move(answer));
    std::visit(
        [&](auto& kept) {
          // The server may have closed it meanwhile: then a new one is dialled.
          exchange(std::move(kept), clock_.now() + settings_.limit, std::move(answer),
                   [this](Answer theirs) { dial(std::move(theirs)); });
        },
        stream->of);
  }

 private:
  void dial(Answer answer) {
    const TimePoint deadline = clock_.now() + settings_.limit;
    dialer_.dial(settings_.endpoint, settings_.limit,
                 [this, deadline, answer = std::move(answer)](Result<tcp::socket> socket) {
                   if (!socket) return answer(std::unexpected(socket.error()));
                   connected(std::move(*socket), deadline, answer);
                 });
  }

  void connected(tcp::socket socket, TimePoint deadline, Answer answer) {
    if (!settings_.tls) return exchange(std::move(socket), deadline, std::move(answer), {});
    error_code ignored;
    TlsStream stream(std::move(socket), *settings_.tls);
    const std::string& host = settings_.endpoint.host;
    // verify_peer alone accepts a valid certificate of any host: the name has to be compared, too.
    stream.set_verify_callback(ssl::host_name_verification(host), ignored);
    // Servers with several certificates choose by this name; numbers are not allowed in it (RFC
    // 6066).
    if (parse_address(host).is_unspecified()) {
      SSL_set_tlsext_host_name(stream.native_handle(), host.c_str());
    }
    exchange(std::move(stream), deadline, std::move(answer), {});
  }

  template <class Stream>
  void exchange(Stream stream, TimePoint deadline, Answer answer,
                typename Exchange<Stream>::Again again) {
    const auto made = std::make_shared<Exchange<Stream>>(
        std::move(stream), clock_, settings_, request_, std::move(answer), std::move(again));
    drop_ = [made] { made->drop(); };
    made->start(deadline);
  }

  Clock& clock_;
  Dialer dialer_;
  Settings settings_;
  HttpRequest request_;
  std::function<void()> drop_;
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
  auto call = std::make_unique<DialledCall>(loop, clock);
  call->start(std::move(settings), std::move(request), std::move(answer));
  return call;
}

}  // namespace elastrun::net
