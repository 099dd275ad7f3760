// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "export/kubeflow_progress.hpp"
#include "export/metrics_sink.hpp"
#include "export/otlp_target.hpp"
#include "files/blocking_calls.hpp"
#include "net/http_call.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace elastrun::exporter {

/// Tells the controller of Kubeflow's Trainer how far training is, for `kubectl get trainjob`: one
/// request at a time, with what is newest, and a pause after each. One that is not taken is not
/// sent again: a newer one takes its place.
class KubeflowSink final : public MetricsSink {
 public:
  static constexpr Duration kPause = std::chrono::seconds(5);  // as Kubeflow's SDK waits
  static constexpr Duration kLongestPause = std::chrono::minutes(1);
  static constexpr Duration kLimit = std::chrono::seconds(10);  // of a request
  static constexpr std::size_t kToken = 64 << 10;               // bytes

  struct Settings {
    OtlpTarget target;
    std::shared_ptr<net::TlsClient> tls{};
    std::string token_file;  // of the pod; read each time, because the kubelet replaces it
    std::optional<std::int64_t> steps{};
  };
  /// Borrows all but the settings.
  KubeflowSink(boost::asio::io_context& loop, Clock& clock, files::BlockingCalls& files,
               std::string name, Settings settings);

  void consume(const telemetry::Record& record) override;
  void finish(std::function<void()> done) override;
  SinkAccount account() const override;

 private:
  void send();
  void post(const Result<std::string>& token);
  void answered(const Result<net::HttpResponse>& response);
  void sent(std::string trouble);

  boost::asio::io_context& loop_;
  Clock& clock_;
  files::BlockingCalls& files_;
  const Settings settings_;
  KubeflowProgress progress_;
  std::unique_ptr<Alarm> alarm_;
  net::KeptConnection kept_;
  std::unique_ptr<net::HttpCall> call_, answered_call_;  // that may be on the stack still
  bool is_new_ = false, sending_ = false;
  TimePoint not_before_{};
  Duration pause_ = kPause;
  std::uint64_t delivered_ = 0, lost_ = 0;
  std::string trouble_;
  std::function<void()> finished_;
  Lifetime lifetime_;
};

}  // namespace elastrun::exporter
