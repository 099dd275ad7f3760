// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/election/etcd_client.hpp"

#include "core/log.hpp"
#include "core/text.hpp"
#include "rendezvous/election/etcd_reader.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <utility>

namespace elastrun::rendezvous {
namespace {

// One event of one small key; far below what a mistaken server could send without end.
constexpr std::size_t kMaxLine = 1u << 20;
// Between tries of the watch: another member mostly takes over at once, and a cluster that is down
// must not be flooded.
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);

}  // namespace

struct EtcdClient::Question {
  std::string target, body;
  Answer answer;
  std::size_t endpoint = 0, tried = 0;
  bool logged_in = false;  // for this question
  std::vector<std::string> troubles{};
  std::unique_ptr<net::HttpCall> call{};
};

EtcdClient::EtcdClient(boost::asio::io_context& loop, Clock& clock, EtcdAccess access)
    : loop_(loop),
      clock_(clock),
      access_(std::move(access)),
      kept_(std::make_unique<net::KeptConnection>(clock)),
      reopening_(clock.make_alarm()) {}
EtcdClient::~EtcdClient() = default;

net::HttpCall::Settings EtcdClient::settings(std::size_t endpoint) const {
  return {access_.endpoints.at(endpoint), access_.tls, access_.limit, false, kept_.get()};
}

void EtcdClient::ask(std::string target, std::string body, Answer answer) {
  Question question{std::move(target), std::move(body), std::move(answer)};
  question.endpoint = good_;
  // A list, because handlers keep the place of their question while others come and go.
  questions_.push_back(std::move(question));
  const Place place = std::prev(questions_.end());
  // Logging in first saves the refusal; a refusal tells that a token has expired.
  if (!access_.user.empty() && token_.empty()) return log_in(place);
  send(place);
}

void EtcdClient::send(Place question) {
  net::HttpRequest request{.target = question->target, .body = question->body};
  if (!token_.empty()) request.headers.emplace_back("Authorization", token_);
  auto response = std::make_shared<net::HttpResponse>();
  net::HttpCall::Handlers handlers;
  // The address by which this machine goes out is one by which others mostly reach it.
  handlers.on_connect = [this](const auto& own) { own_ = own; };
  handlers.on_head = [response](int status) { response->status = status; };
  handlers.on_piece = [response](std::string_view piece) {
    // Cut, not refused: what is left does not parse, and is reported as that.
    if (response->body.size() < kMaxLine) response->body += piece;
  };
  handlers.on_end = [this, question, response](const Status& status) {
    if (!status) return answered(question, std::unexpected(status.error()));
    answered(question, std::move(*response));
  };
  question->call = net::HttpCall::start(loop_, clock_, settings(question->endpoint),
                                        std::move(request), std::move(handlers));
}

void EtcdClient::answered(Place question, Result<net::HttpResponse> response) {
  if (!response) {
    // A certificate that is not to be trusted does not become better at the next server.
    return next_endpoint(question, response.error());
  }
  if (response->status == 200) {
    good_ = question->endpoint;
    return finish(question, std::move(response->body));
  }
  auto refused = etcd::read_refusal(response->status, response->body);
  if (refused.unavailable) return next_endpoint(question, std::move(refused.error));
  // Without a login etcd asks for one. With a login the token is old (a user was added, another
  // member took over): log in again, for that must not end a job.
  if (refused.bad_token && access_.user.empty()) refused.error.code = Code::Usage;
  if (refused.bad_token && !access_.user.empty() && !question->logged_in) return log_in(question);
  finish(question, std::unexpected(std::move(refused.error)));
}

void EtcdClient::next_endpoint(Place question, Error error) {
  question->troubles.push_back(error.text);
  if (++question->tried >= access_.endpoints.size()) {
    // All of them: a user has to see which endpoint fails in which way.
    error.text = join(question->troubles, "; ");
    return finish(question, std::unexpected(std::move(error)));
  }
  question->endpoint = (question->endpoint + 1) % access_.endpoints.size();
  // Not inside the end of the call that is replaced.
  boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(question->call))] {});
  send(question);
}

void EtcdClient::finish(Place question, Result<std::string> result) {
  Question done = std::move(*question);
  questions_.erase(question);
  done.answer(std::move(result));
  boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(done.call))] {});
}

void EtcdClient::log_in(Place question) {
  // Once per question: what is refused right after a login is not for want of a fresh token.
  question->logged_in = true;
  token_.clear();
  Question login{
      "/v3/auth/authenticate", etcd::login_request(access_.user, access_.password),
      [this, question](Result<std::string> text) {
        auto token =
            text ? etcd::read_token(*text) : Result<std::string>(std::unexpected(text.error()));
        if (!token) {
          return finish(question, std::unexpected(token.error().context("cannot log in to etcd")));
        }
        token_ = std::move(*token);
        boost::asio::post(loop_,
                          [old = std::shared_ptr<net::HttpCall>(std::move(question->call))] {});
        send(question);
      }};
  login.endpoint = question->endpoint;
  // A refused login must not lead to another login.
  login.logged_in = true;
  questions_.push_back(std::move(login));
  send(std::prev(questions_.end()));
}

void EtcdClient::watch(std::string key, std::int64_t from_revision, std::function<void()> changed) {
  watched_ = std::move(key);
  from_revision_ = from_revision;
  changed_ = std::move(changed);
  pause_ = kFirstPause;
  open_watch();
}

void EtcdClient::unwatch() {
  changed_ = nullptr;
  reopening_->disarm();
  boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(stream_))] {});
}

void EtcdClient::open_watch() {
  unread_.clear();
  net::HttpRequest request{.target = "/v3/watch",
                           .body = etcd::watch_request(watched_, from_revision_)};
  if (!token_.empty()) request.headers.emplace_back("Authorization", token_);
  // Without it a member that has lost its cluster keeps the watch, and says nothing for ever.
  request.headers.emplace_back("Grpc-Metadata-hasleader", "true");
  net::HttpCall::Settings where = settings(good_);
  where.endless = true;
  // A watch never gives its connection back.
  where.kept = nullptr;
  net::HttpCall::Handlers handlers;
  handlers.on_piece = [this](std::string_view piece) { read_stream(piece); };
  handlers.on_end = [this](const Status& status) {
    watch_ended(status ? "the server ended the watch" : status.error().text);
  };
  stream_ = net::HttpCall::start(loop_, clock_, std::move(where), std::move(request),
                                 std::move(handlers));
}

void EtcdClient::read_stream(std::string_view piece) {
  unread_ += piece;
  // A line may lead to unwatch(), which empties `changed_`.
  for (auto end = unread_.find('\n'); end != std::string::npos && changed_;
       end = unread_.find('\n')) {
    const std::string line = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    read_line(line);
  }
  if (unread_.size() > kMaxLine && changed_) watch_ended("a line without end");
}

void EtcdClient::read_line(std::string_view line) {
  const auto answer = etcd::read_watch(line);
  if (!answer) return watch_ended(answer.error().text);
  if (answer->compacted > 0) {
    // What happened in between is forgotten: something may have changed, and what comes next
    // counts.
    from_revision_ = std::max(answer->compacted, answer->revision + 1);
    // Posted: `changed` may call unwatch(), and the next line still needs the watch.
    boost::asio::post(loop_, [changed = changed_] { changed(); });
    return watch_ended("compacted");
  }
  if (answer->canceled) return watch_ended("the server cancelled the watch");
  // This member is well, so the next loss begins with short pauses.
  pause_ = kFirstPause;
  if (answer->events == 0) return;
  from_revision_ = std::max(from_revision_, answer->revision + 1);
  // A copy: it may call unwatch(), which destroys the function that runs.
  const auto changed = changed_;
  changed();
}

void EtcdClient::watch_ended(const std::string& why) {
  if (!changed_) return;
  log::debug("rendezvous", "the watch on {} is set up again: {}", watched_, why);
  boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(stream_))] {});
  // The next one: a member that has lost its cluster would end each watch again.
  good_ = (good_ + 1) % access_.endpoints.size();
  reopening_->arm(clock_.now() + pause_, [this] { open_watch(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

}  // namespace elastrun::rendezvous
