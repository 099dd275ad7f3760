// SPDX-License-Identifier: Apache-2.0
#include "export/otlp_sink.hpp"

#include "core/json.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <random>
#include <utility>

namespace elastrun::exporter {
namespace {

using telemetry::Record;

/// What a record takes in memory, roughly.
std::size_t size_of(const Record& record) {
  std::size_t size = 256 + record.name.size() + record.scope.size();
  for (const auto& [key, value] : record.attributes) {
    const auto* text = std::get_if<std::string>(&value);
    size += 64 + key.size() + (text != nullptr ? text->size() : 0);
  }
  return size;
}

bool may_be_sent_again(int status) {
  // As OTLP/HTTP says; the same request would be refused again with any other status.
  return status == 429 || status == 502 || status == 503 || status == 504;
}

/// Many agents lose their collector at the same moment; they should not all come back at one.
Duration with_jitter(Duration pause) {
  static std::minstd_rand random(std::random_device{}());
  return pause / 2 +
         Duration(std::uniform_int_distribution<Duration::rep>(0, (pause / 2).count())(random));
}

/// "partialSuccess": how many the collector has rejected although it has answered with 200.
std::uint64_t rejected(const std::string& body, std::string& why) {
  const auto value = parse_json(body);
  const auto* partial = value ? find_member(*value, "partialSuccess") : nullptr;
  if (partial == nullptr) return 0;
  why = member_text_or(*partial, "errorMessage", "rejected in part");
  for (const char* key : {"rejectedLogRecords", "rejectedDataPoints", "rejectedSpans"}) {
    // protobuf's JSON has 64 bits as a text; a number is taken, too.
    const auto text = member_text_or(*partial, key, "");
    const auto count = text.empty() ? member_int_or(*partial, key, 0) : parse_int(text).value_or(0);
    if (count > 0) return static_cast<std::uint64_t>(count);
  }
  return 0;
}

}  // namespace

OtlpSink::OtlpSink(boost::asio::io_context& loop, Clock& clock, std::string name, Settings settings)
    : MetricsSink(std::move(name)),
      loop_(loop),
      clock_(clock),
      settings_(std::move(settings)),
      kept_(clock),
      alarm_(clock.make_alarm()) {}

void OtlpSink::Pace::pause(TimePoint now, Duration time) {
  not_before = std::max(not_before, now + time);
}

std::size_t OtlpSink::Outbox::add(const Record& record) {
  bytes += size_of(record);
  waiting.push_back(record);
  std::size_t gone = 0;
  // The oldest go: what happened just now says more about what is wrong.
  for (; bytes > kMost; ++gone) {
    bytes -= size_of(waiting.front());
    waiting.pop_front();
  }
  return gone;
}

void OtlpSink::Outbox::fill_batch() {
  // A batch that was not taken goes out again before anything newer.
  const auto count = batch.empty() ? std::min(kBatch, waiting.size()) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    bytes -= size_of(waiting.front());
    batch.push_back(std::move(waiting.front()));
    waiting.pop_front();
  }
}

std::size_t OtlpSink::Outbox::drop() {
  const auto all = size();
  batch.clear();
  waiting.clear();
  bytes = 0;
  return all;
}

void OtlpSink::consume(const Record& record) {
  const bool span = record.kind == Record::Kind::SpanEnd;
  if (record.kind != Record::Kind::Event && !span) return;
  auto& outbox = outboxes_[span ? 1 : 0];
  const bool first = outbox.waiting.empty();
  lost_ += outbox.add(record);
  if (!first) return;
  // Events come in bursts: they wait a moment, to go out as one batch.
  if (!finished_) outbox.pace.pause(clock_.now(), kGather);
  if (!call_) send_later();
}

void OtlpSink::pull(const telemetry::Snapshot& snapshot) {
  // Replaces a page that was not taken: its totals are in this one.
  metrics_ = snapshot.points.empty() ? "" : otlp_metrics(snapshot, settings_.options);
  send();
}

void OtlpSink::send() {
  // One request at a time: a collector that is slow must not be asked more often for it.
  if (call_) return;
  const auto now = clock_.now();
  // Each signal has its own pace: a collector that answers 503 for metrics alone once got no event
  // at all. And its turn: one that takes longer for metrics than the pause between two collections
  // would get nothing else.
  constexpr std::size_t kSignals = std::tuple_size_v<decltype(outboxes_)> + 1;
  bool more = false;
  for (std::size_t i = 0; i < kSignals; ++i) {
    const auto signal = (turn_ + i) % kSignals;
    auto* const outbox = signal == 0 ? nullptr : &outboxes_[signal - 1];
    if (outbox == nullptr ? metrics_.empty() : !outbox->has_some()) continue;
    more = true;
    if (now < (outbox == nullptr ? metrics_pace_ : outbox->pace).not_before) continue;
    turn_ = signal + 1;
    return outbox == nullptr ? send_metrics() : send_records(*outbox);
  }
  under_way_ = nullptr;
  if (more) return send_later();
  // Last: what it calls may destroy this sink.
  if (const auto finished = std::exchange(finished_, {})) finished();
}

void OtlpSink::send_later() {
  auto next = TimePoint::max();
  if (!metrics_.empty()) next = std::min(next, metrics_pace_.not_before);
  for (const auto& outbox : outboxes_) {
    if (outbox.has_some()) next = std::min(next, outbox.pace.not_before);
  }
  alarm_->arm(next, [this] { send(); });
}

void OtlpSink::send_metrics() {
  under_way_ = &metrics_pace_;
  // Kept while it is under way, to be sent again if nothing newer has come by then.
  sending_ = std::exchange(metrics_, {});
  post("/v1/metrics", sending_);
}

void OtlpSink::send_records(Outbox& outbox) {
  under_way_ = &outbox.pace;
  outbox.fill_batch();
  post(outbox.path, outbox.body(outbox.batch, settings_.options));
}

/// Null: metrics are, or nothing is.
OtlpSink::Outbox* OtlpSink::outbox_under_way() {
  const auto found = std::ranges::find_if(
      outboxes_, [this](const Outbox& outbox) { return &outbox.pace == under_way_; });
  return found == outboxes_.end() ? nullptr : &*found;
}

void OtlpSink::post(const char* path, std::string body) {
  net::HttpCall::Settings settings{settings_.target.endpoint, settings_.tls, kLimit};
  // One connection for all requests: a handshake of TLS for each would cost more than what is sent.
  settings.kept = &kept_;
  net::HttpRequest request{"POST", settings_.target.path + path, std::move(body),
                           settings_.headers};
  call_ = net::fetch(loop_, clock_, std::move(settings), std::move(request),
                     [this](const Result<net::HttpResponse>& response) { answered(response); });
}

void OtlpSink::answered(const Result<net::HttpResponse>& response) {
  // It is this call that runs now, so it must outlive this function.
  answered_call_ = std::move(call_);
  if (!response) return later(response.error().text, std::nullopt);
  const int status = response->status;
  if (status >= 200 && status < 300) return taken(response->body);
  const auto why = fmt::format(
      "{} answers with status {}",
      net::format_endpoint(settings_.target.endpoint.host, settings_.target.endpoint.port), status);
  if (!may_be_sent_again(status)) return refused(why);
  const auto seconds = parse_int(response->retry_after);
  if (!seconds || *seconds < 0) return later(why, std::nullopt);
  // Bounded, since a collector that asks for a day would end this sink.
  later(why, std::min<Duration>(std::chrono::seconds(std::min<std::int64_t>(*seconds, 1 << 20)),
                                kLongestRetryAfter));
}

void OtlpSink::taken(const std::string& body) {
  under_way_->next_pause = kFirstPause;
  std::string why;
  // The collector gives the number, so it is not believed beyond what was sent.
  const auto lost = std::min<std::uint64_t>(rejected(body, why), under_way());
  delivered_ += under_way() - lost;
  lost_ += lost;
  if (lost > 0) {
    trouble(why);
  } else if (std::exchange(under_way_->said, false)) {
    log::info("metrics", "{}: takes what it is sent again", name());
  }
  if (auto* const outbox = outbox_under_way()) outbox->batch.clear();
  send();
}

void OtlpSink::refused(std::string why) {
  lost_ += under_way();
  if (auto* const outbox = outbox_under_way()) outbox->batch.clear();
  trouble(std::move(why));
  send();
}

/// At the end a retry would come too late. Metrics newer than those sent replace them.
void OtlpSink::later(std::string why, std::optional<Duration> asked) {
  trouble(std::move(why));
  if (finished_) {
    drop_those_under_way();
    return send();
  }
  // Totals: the newest page replaces any that was not taken.
  if (metrics_are_under_way() && metrics_.empty()) metrics_ = std::move(sending_);
  auto& pace = *under_way_;
  pace.pause(clock_.now(), asked ? *asked : with_jitter(pace.next_pause));
  pace.next_pause = std::min(pace.next_pause * 2, kLongestPause);
  send();
}

void OtlpSink::drop_those_under_way() {
  if (metrics_are_under_way()) {
    // The page under way, and the newer one that waited behind it.
    lost_ += metrics_.empty() ? 1 : 2;
    metrics_.clear();
  } else if (auto* const outbox = outbox_under_way()) {
    lost_ += outbox->drop();
  }
}

void OtlpSink::trouble(std::string why) {
  if (!std::exchange(under_way_->said, true)) {
    log::warning("metrics", "{}: {}; what it does not take in time is lost", name(), why);
  }
  if (trouble_.empty()) trouble_ = std::move(why);
}

void OtlpSink::finish(std::function<void()> done) {
  finished_ = std::move(done);
  // No pause any more: the agent waits two seconds for all sinks together.
  alarm_->disarm();
  metrics_pace_.not_before = {};
  for (auto& outbox : outboxes_) outbox.pace.not_before = {};
  turn_ = 0;  // the last totals first
  send();
}

SinkAccount OtlpSink::account() const {
  std::uint64_t open = metrics_.empty() ? 0 : 1;
  for (const auto& outbox : outboxes_) open += outbox.size();
  if (call_ && metrics_are_under_way()) open += 1;
  return {name(), delivered_, lost_ + open, trouble_, open};
}

}  // namespace elastrun::exporter
