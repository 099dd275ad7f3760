// SPDX-License-Identifier: Apache-2.0
#include "export/kubeflow_sink.hpp"

#include "core/log.hpp"
#include "core/read_file.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace elastrun::exporter {
namespace {

/// What a pod's file holds, as the field of a request may have it: no line, no control character.
Result<std::string> read_token(const std::string& path) {
  auto text = read_file(path, KubeflowSink::kToken);
  if (!text) return text;
  const std::string token(trim(*text));
  const bool fits = std::ranges::all_of(token, [](char c) { return c > ' ' && c < 0x7f; });
  if (token.empty() || !fits) return fail(Code::Io, path + " holds no token");
  return token;
}

}  // namespace

KubeflowSink::KubeflowSink(boost::asio::io_context& loop, Clock& clock, files::BlockingCalls& files,
                           std::string name, Settings settings)
    : MetricsSink(std::move(name)),
      loop_(loop),
      clock_(clock),
      files_(files),
      settings_(std::move(settings)),
      progress_(settings_.steps),
      alarm_(clock.make_alarm()),
      kept_(clock) {}

void KubeflowSink::consume(const telemetry::Record& record) {
  if (!progress_.take(record)) return;
  // The alarm is armed already while something new waits.
  if (!std::exchange(is_new_, true) && !sending_) send();
}

void KubeflowSink::send() {
  if (sending_) return;
  if (!is_new_) {
    if (const auto finished = std::exchange(finished_, {})) finished();
    return;
  }
  if (!finished_ && clock_.now() < not_before_) {
    return alarm_->arm(not_before_, [this] { send(); });
  }
  // With the token as it is now: the kubelet replaces it before it expires.
  sending_ = true;
  files_.make(
      settings_.token_file, [path = settings_.token_file] { return read_token(path); },
      [this, alive = lifetime_.token()](const Result<std::string>& token) {
        if (alive) post(token);
      });
}

void KubeflowSink::post(const Result<std::string>& token) {
  is_new_ = false;
  if (!token) return sent(token.error().text);
  net::HttpCall::Settings settings{settings_.target.endpoint, settings_.tls, kLimit};
  settings.kept = &kept_;
  net::HttpRequest request{"POST", settings_.target.path, progress_.body(clock_.wall()), {}};
  request.headers = {{"Authorization", "Bearer " + *token}, {"Content-Type", "application/json"}};
  call_ = net::fetch(loop_, clock_, std::move(settings), std::move(request),
                     [this](const Result<net::HttpResponse>& response) { answered(response); });
}

void KubeflowSink::answered(const Result<net::HttpResponse>& response) {
  // It is this call that runs now, so it must outlive this function.
  answered_call_ = std::move(call_);
  if (!response) return sent(response.error().text);
  if (response->status / 100 == 2) return sent({});
  const auto& [host, port] = settings_.target.endpoint;
  sent(fmt::format("{} answers with status {}: {}", net::format_endpoint(host, port),
                   response->status, printable(response->body)));
}

/// With an empty text it was taken.
void KubeflowSink::sent(std::string trouble) {
  sending_ = false;
  if (trouble.empty()) {
    delivered_ += 1;
    pause_ = kPause;
  } else {
    lost_ += 1;
    if (trouble_.empty()) {
      log::warning("metrics", "{}: {}; later ones are sent all the same", name(), trouble);
      trouble_ = std::move(trouble);
    }
    pause_ = std::min(pause_ * 2, kLongestPause);
  }
  not_before_ = clock_.now() + pause_;
  send();
}

void KubeflowSink::finish(std::function<void()> done) {
  finished_ = std::move(done);
  // No pause any more: what was done last is what stays in the status.
  alarm_->disarm();
  send();
}

SinkAccount KubeflowSink::account() const {
  const std::uint64_t open = (is_new_ ? 1u : 0u) + (sending_ ? 1u : 0u);
  return {name(), delivered_, lost_ + open, trouble_, open};
}

}  // namespace elastrun::exporter
