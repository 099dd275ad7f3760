// SPDX-License-Identifier: Apache-2.0

#include "rendezvous/election/make_elected.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "rendezvous/election/etcd_reader.hpp"
#include "rendezvous/election/file_leader_lease.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <utility>
#include <vector>

namespace elastrun::rendezvous {

Result<std::string> read_secret(const std::string& file, const std::string& given) {
  if (file.empty()) return given;
  const auto text = read_file(file);
  if (!text) {
    return fail(Code::Usage, "cannot read the secret of the job, secret_file=" + text.error().text);
  }
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & 077) != 0) {
    log::warning("rendezvous",
                 "the secret in {} can be read by others on this machine: chmod 600 {}", file,
                 file);
  }
  const std::string secret(trim(*text));
  // Elsewhere an empty one means that the job has none.
  if (secret.empty()) {
    return fail(Code::Usage, fmt::format("the secret of the job (secret_file={}) is empty", file));
  }
  return secret;
}

namespace {

// One event of one small key; far below what a mistaken server could send without end.
constexpr std::size_t kMaxLine = 1u << 20;
// Between tries of the watch: another member mostly takes over at once, and a cluster that is down
// must not be flooded.
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(2);

/// Requests to etcd's JSON gateway. Logs in when it must, goes to the next endpoint when one does
/// not answer. Destroying it takes all answers away.
class EtcdClient {
 public:
  using Answer = std::function<void(Result<std::string>)>;

  EtcdClient(boost::asio::io_context& loop, Clock& clock, EtcdAccess access)
      : loop_(loop),
        clock_(clock),
        access_(std::move(access)),
        kept_(std::make_unique<net::KeptConnection>(clock)),
        reopening_(clock.make_alarm()) {}
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// Posts `body` to e.g. "/v3/kv/range"; answers with the body of a 200.
  void ask(std::string target, std::string body, Answer answer) {
    Question question{std::move(target), std::move(body), std::move(answer)};
    question.endpoint = good_;
    // A list, because handlers keep the place of their question while others come and go.
    questions_.push_back(std::move(question));
    const Place place = std::prev(questions_.end());
    // Logging in first saves the refusal; a refusal tells that a token has expired.
    if (!access_.user.empty() && token_.empty()) return log_in(place);
    send(place);
  }

  /// A watch on one key from a revision on. Survives lost connections, servers that stop and those
  /// that lose their leader: it goes on elsewhere, from the first revision not seen.
  void watch(std::string key, std::int64_t from_revision, std::function<void()> changed) {
    watched_ = std::move(key);
    from_revision_ = from_revision;
    changed_ = std::move(changed);
    pause_ = kFirstPause;
    open_watch();
  }
  void unwatch() {
    changed_ = nullptr;
    reopening_->disarm();
    boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(stream_))] {});
  }

  /// This machine's address on the last connection; unspecified before.
  boost::asio::ip::address own_address() const { return own_; }

 private:
  struct Question {
    std::string target, body;
    Answer answer;
    std::size_t endpoint = 0, tried = 0;
    bool logged_in = false;  // for this question
    std::vector<std::string> troubles{};
    std::unique_ptr<net::HttpCall> call{};
  };
  using Place = std::list<Question>::iterator;
  void send(Place question) {
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
  void answered(Place question, Result<net::HttpResponse> response) {
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
  void next_endpoint(Place question, Error error) {
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
  void finish(Place question, Result<std::string> result) {
    Question done = std::move(*question);
    questions_.erase(question);
    done.answer(std::move(result));
    boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(done.call))] {});
  }
  void log_in(Place question) {
    // Once per question: what is refused right after a login is not for want of a fresh token.
    question->logged_in = true;
    token_.clear();
    Question login{
        "/v3/auth/authenticate", etcd::login_request(access_.user, access_.password),
        [this, question](Result<std::string> text) {
          auto token =
              text ? etcd::read_token(*text) : Result<std::string>(std::unexpected(text.error()));
          if (!token) {
            return finish(question,
                          std::unexpected(token.error().context("cannot log in to etcd")));
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
  net::HttpCall::Settings settings(std::size_t endpoint) const {
    return {access_.endpoints.at(endpoint), access_.tls, access_.limit, false, kept_.get()};
  }

  void open_watch() {
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
  void read_stream(std::string_view piece) {
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
  void read_line(std::string_view line) {
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
  void watch_ended(const std::string& why) {
    if (!changed_) return;
    log::debug("rendezvous", "the watch on {} is set up again: {}", watched_, why);
    boost::asio::post(loop_, [old = std::shared_ptr<net::HttpCall>(std::move(stream_))] {});
    // The next one: a member that has lost its cluster would end each watch again.
    good_ = (good_ + 1) % access_.endpoints.size();
    reopening_->arm(clock_.now() + pause_, [this] { open_watch(); });
    pause_ = std::min(pause_ * 2, kLongestPause);
  }

  boost::asio::io_context& loop_;
  Clock& clock_;
  const EtcdAccess access_;
  std::size_t good_ = 0;  // endpoint that answered last
  std::string token_;
  boost::asio::ip::address own_;
  const std::unique_ptr<net::KeptConnection> kept_;
  std::list<Question> questions_;

  // The watch
  std::string watched_;
  std::int64_t from_revision_ = 0;
  std::function<void()> changed_;
  std::unique_ptr<net::HttpCall> stream_;
  std::string unread_;
  std::unique_ptr<Alarm> reopening_;
  Duration pause_{};
};

// The answer as `read` understands it, or why there was none.
template <class Value>
Result<Value> understand(const Result<std::string>& text, Result<Value> (*read)(std::string_view)) {
  if (!text) return std::unexpected(text.error());
  return read(*text);
}

// etcd's leases have whole seconds. Rounded down, one could end before this node counts on it to.
std::int64_t whole_seconds(Duration time) {
  return std::chrono::ceil<std::chrono::seconds>(time).count();
}

class EtcdLeaderLease final : public LeaderLease {
 public:
  EtcdLeaderLease(boost::asio::io_context& loop, Clock& clock, EtcdLeaseSettings settings)
      : loop_(loop), settings_(std::move(settings)), client_(loop, clock, settings_.access) {}

  void read(std::function<void(Result<std::optional<Leader>>)> answer) override {
    client_.ask("/v3/kv/range", etcd::range_request(settings_.key),
                [this, answer = std::move(answer)](const Result<std::string>& text) {
                  const auto range = understand(text, etcd::read_range);
                  if (!range) return answer(std::unexpected(range.error()));
                  seen_revision_ = range->revision;  // lower than before if all was lost
                  if (!range->entry) return answer(std::nullopt);
                  answer(Leader{range->entry->value, range->entry->create_revision});
                });
  }

  void claim(const std::string& value, std::function<void(Result<Leader>)> answer) override {
    // The lease first: an entry without one would outlive its leader.
    client_.ask("/v3/lease/grant", etcd::grant_request(whole_seconds(settings_.ttl)),
                [this, value, answer = std::move(answer)](const Result<std::string>& text) {
                  const auto lease = understand(text, etcd::read_lease);
                  if (!lease) return answer(std::unexpected(lease.error()));
                  create(value, lease->id, answer);
                });
  }

  void renew(std::function<void(Result<bool>)> answer) override {
    client_.ask("/v3/lease/keepalive", etcd::lease_request(lease_),
                [this, answer = std::move(answer)](const Result<std::string>& text) {
                  const auto lease = understand(text, etcd::read_lease);
                  if (!lease) return answer(std::unexpected(lease.error()));
                  // A lease that has lapsed does not fail the call: etcd answers it without a
                  // time to live.
                  if (lease->ttl <= 0) return answer(false);
                  renew_record();
                  confirm(answer);
                });
  }

  void record(const std::string& record, std::function<void(Result<bool>)> answer) override {
    last_record_ = record;
    if (record_lease_ != 0) return put(record, answer);
    client_.ask("/v3/lease/grant", etcd::grant_request(whole_seconds(settings_.record_life)),
                [this, record, answer = std::move(answer)](const Result<std::string>& text) {
                  const auto lease = understand(text, etcd::read_lease);
                  if (!lease) return answer(std::unexpected(lease.error()));
                  // Its own lease: the record has to outlive the entry by as long as a world may
                  // run without its leader.
                  record_lease_ = lease->id;
                  put(record, answer);
                });
  }

  void release(bool forget, std::function<void()> done) override {
    if (lease_ == 0) return boost::asio::post(loop_, std::move(done));
    // From here on nothing renews it, also if the answer is lost.
    const auto give_back = [this, lease = std::exchange(lease_, 0), done = std::move(done)] {
      revoke(lease, done);
    };
    if (!forget) return give_back();
    // First the record: a candidate that finds the entry free must not find a world that has ended.
    // A successor's record is the only trace of its world: a process that was frozen must leave it.
    client_.ask("/v3/kv/txn",
                etcd::guarded_delete_request(settings_.key, epoch_, settings_.record_key),
                [give_back](const Result<std::string>&) { give_back(); });
  }

  void watch(std::function<void()> changed) override {
    // From the last look on, or a change between look and watch would be missed.
    client_.watch(settings_.key, seen_revision_ + 1, std::move(changed));
  }
  void unwatch() override { client_.unwatch(); }
  Duration ttl() const override { return settings_.ttl; }
  boost::asio::ip::address own_address() const override { return client_.own_address(); }

 private:
  void create(const std::string& value, std::int64_t lease,
              const std::function<void(Result<Leader>)>& answer) {
    client_.ask("/v3/kv/txn", etcd::create_request(settings_.key, value, lease),
                [this, value, lease, answer](const Result<std::string>& text) {
                  auto there = text ? etcd::read_create(*text, value)
                                    : Result<etcd::RangeAnswer>(std::unexpected(text.error()));
                  created(value, lease, std::move(there), answer);
                });
  }

  void created(const std::string& value, std::int64_t lease, const Result<etcd::RangeAnswer>& there,
               const std::function<void(Result<Leader>)>& answer) {
    if (there && there->entry && there->entry->value == value) {
      lease_ = lease;
      last_record_.clear();  // of another term
      epoch_ = there->entry->create_revision;
      return read_record(value, answer);
    }
    // After an error it may have been done or not; without its lease it is undone.
    revoke(lease, [] {});
    if (!there) return answer(std::unexpected(there.error()));
    if (!there->entry) return answer(fail(Code::Io, "etcd: the entry came and went"));
    answer(Leader{there->entry->value, there->entry->create_revision});
  }

  void read_record(const std::string& value, const std::function<void(Result<Leader>)>& answer) {
    client_.ask("/v3/kv/range", etcd::range_request(settings_.record_key),
                [this, value, answer](const Result<std::string>& text) {
                  const auto range = understand(text, etcd::read_range);
                  if (range)
                    return answer(Leader{value, epoch_, range->entry ? range->entry->value : ""});
                  // A leader that does not know the last world could form a second one beside it:
                  // rather do not lead.
                  revoke(std::exchange(lease_, 0), [] {});
                  answer(std::unexpected(range.error()));
                });
  }

  void put(const std::string& record, const std::function<void(Result<bool>)>& answer) {
    client_.ask("/v3/kv/txn",
                etcd::guarded_put_request(settings_.key, epoch_, settings_.record_key, record,
                                          record_lease_),
                [this, answer](const Result<std::string>& text) {
                  const auto written = understand(text, etcd::read_guarded_put);
                  if (!written) record_lease_ = 0;  // perhaps it has lapsed
                  answer(written);
                });
  }

  /// Not with each renewal of the entry, if it lives much longer than that; four times in its life.
  /// One that has lapsed all the same, or was revoked, is granted again.
  void renew_record() {
    const auto each =
        std::clamp<std::int64_t>(settings_.record_life / 4 / (settings_.ttl / 3), 1, 8);
    if (++renewals_ % each != 0) return;
    if (lapsed_) return make_record_anew();
    if (record_lease_ == 0) return;
    client_.ask("/v3/lease/keepalive", etcd::lease_request(record_lease_),
                [this, renewed = record_lease_](const Result<std::string>& text) {
                  const auto lease = understand(text, etcd::read_lease);
                  if (!lease || lease->ttl > 0 || record_lease_ != renewed) return;
                  record_lease_ = 0;
                  make_record_anew();
                });
  }

  void make_record_anew() {
    lapsed_ = !last_record_.empty();
    if (!lapsed_) return;
    record(std::string(last_record_), [this](const Result<bool>& done) { lapsed_ = !done; });
  }

  // The lease may live on although the entry was deleted by hand.
  void confirm(const std::function<void(Result<bool>)>& answer) {
    read([this, answer](const Result<std::optional<Leader>>& found) {
      if (!found) return answer(std::unexpected(found.error()));
      answer(*found && (*found)->epoch == epoch_);
    });
  }

  void revoke(std::int64_t lease, std::function<void()> done) {
    client_.ask("/v3/lease/revoke", etcd::lease_request(lease),
                [done = std::move(done)](const Result<std::string>&) { done(); });
  }

  boost::asio::io_context& loop_;
  const EtcdLeaseSettings settings_;
  EtcdClient client_;
  std::int64_t lease_ = 0, epoch_ = 0, record_lease_ = 0;
  std::int64_t renewals_ = 0;
  std::string last_record_;
  bool lapsed_ = false;  // the record has gone and is to be made again
  std::int64_t seen_revision_ = 0;
};

}  // namespace

std::unique_ptr<LeaderLease> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                             EtcdLeaseSettings settings) {
  return std::make_unique<EtcdLeaderLease>(loop, clock, std::move(settings));
}

namespace {

using spec::RendezvousConfig;

struct Servers {
  std::vector<net::Endpoint> endpoints;
  bool tls = false;
};

Result<Servers> read_servers(const std::string& text, bool tls) {
  Servers servers{{}, tls};
  for (const std::string& part : split(text, ',')) {
    std::string_view rest = trim(part);
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!starts_with_ignoring_case(rest, scheme)) continue;
      rest.remove_prefix(scheme.size());
      // One of them with TLS means all, since a request may go to each.
      servers.tls = servers.tls || scheme == "https://";
    }
    if (rest.ends_with('/')) rest.remove_suffix(1);
    auto endpoint = net::parse_endpoint(rest, spec::kEtcdPort);
    if (!endpoint) return std::unexpected(endpoint.error());
    servers.endpoints.push_back(std::move(*endpoint));
  }
  return servers;
}

Status read_tls(const RendezvousConfig& config, EtcdAccess& access) {
  const net::TlsClient::Files files{config.ca_cert, config.ssl_cert, config.ssl_cert_key};
  if (files.cert.empty() != files.key.empty()) {
    return fail(Code::Usage, "a client certificate for etcd needs both ssl_cert and ssl_cert_key");
  }
  auto tls = net::TlsClient::make(files);
  if (!tls) return std::unexpected(tls.error());
  access.tls = std::move(*tls);
  return {};
}

Status read_login(const RendezvousConfig& config, EtcdAccess& access) {
  access.user = config.user;
  access.password = config.password;
  if (access.user.empty() || !access.password.empty()) return {};
  auto password = read_secret(config.password_file, "");
  if (!password) return std::unexpected(password.error());
  if (password->empty()) {
    return fail(Code::Usage, fmt::format("etcd's user {} needs password or password_file in "
                                         "--rdzv-conf",
                                         access.user));
  }
  access.password = std::move(*password);
  return {};
}

// Twice as long as anybody waits because of one.
Duration record_life(const RendezvousConfig& config, Duration isolation) {
  return 2 * std::max(config.isolation_timeout, isolation) + config.lease_ttl;
}

}  // namespace

Result<std::unique_ptr<LeaderLease>> make_etcd_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const RendezvousConfig& config,
                                                     Duration isolation) {
  auto servers = read_servers(endpoint, to_lower(config.protocol) == "https");
  if (!servers) return std::unexpected(servers.error());
  EtcdLeaseSettings settings;
  settings.access.endpoints = std::move(servers->endpoints);
  if (servers->tls) {
    if (auto read = read_tls(config, settings.access); !read) return std::unexpected(read.error());
  }
  if (auto read = read_login(config, settings.access); !read) return std::unexpected(read.error());
  std::string prefix = config.etcd_prefix;
  // A part without a name would make another key than that of nodes without the slash.
  while (prefix.ends_with('/')) prefix.pop_back();
  settings.key = fmt::format("{}/{}/coordinator", prefix, run_id);
  settings.record_key = fmt::format("{}/{}/world", prefix, run_id);
  settings.ttl = config.lease_ttl;
  settings.record_life = record_life(config, isolation);
  // One that does not answer must leave time for the others before the TTL is over.
  settings.access.limit = std::clamp<Duration>(settings.ttl / 4, std::chrono::milliseconds(500),
                                               std::chrono::seconds(5));
  return make_etcd_lease(loop, clock, std::move(settings));
}

Result<std::unique_ptr<LeaderLease>> make_file_lease(boost::asio::io_context& loop, Clock& clock,
                                                     const std::string& endpoint,
                                                     const std::string& run_id,
                                                     const RendezvousConfig& config,
                                                     Duration isolation) {
  std::string path(trim(endpoint));
  if (path.empty()) {
    // As torchrun: a new, unknown file. Only one node can meet there.
    UniqueFd created;
    for (const auto& place : temporary_places()) {
      path = place + "/elastrun.XXXXXX";
      if (created.reset(::mkstemp(path.data())); created) break;
    }
    if (!created)
      return std::unexpected(errno_error(Code::Usage, fmt::format("cannot make {}", path), errno));
  }
  const std::string file = lease_file(path, run_id);
  const auto parent = std::filesystem::path(file).parent_path();
  struct stat status {};
  // Said now: later it would pass for a register that does not answer.
  if (!parent.empty() && (::stat(parent.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))) {
    return fail(Code::Usage,
                fmt::format("the rendezvous file {} cannot exist: {} is not a directory that "
                            "this node can see",
                            file, parent.string()));
  }
  return make_file_lease(loop, clock, file, config.lease_ttl, record_life(config, isolation));
}

}  // namespace elastrun::rendezvous
