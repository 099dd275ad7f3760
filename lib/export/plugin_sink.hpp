// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/lifetime.hpp"
#include "export/metrics_sink.hpp"
#include "export/piece_queue.hpp"
#include "files/blocking_calls.hpp"
#include "plugin/library.hpp"

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::exporter {

/// About how much memory a record takes.
std::size_t size_of_record(const telemetry::Record& record);

/// A sink that runs foreign code in this process. One thread makes all calls into it: a call that
/// blocks costs the records that come meanwhile and do not fit, and nothing else.
/// Events are handed over at once, other records with the next event or after kPause, series when
/// the last ones have been taken. It may look after the health of the node as well.
class PluginSink final : public MetricsSink {
 public:
  static constexpr std::size_t kMost = 4 << 20;     // bytes of records that wait
  static constexpr std::size_t kBatch = 256 << 10;  // that are handed over at a time
  static constexpr Duration kPause = std::chrono::milliseconds(500);
  static constexpr Duration kOpening = std::chrono::seconds(30);
  static constexpr Duration kBetweenChecks = std::chrono::seconds(10);
  /// A check that takes longer is a bad sign, too.
  static constexpr Duration kCheckLimit = std::chrono::seconds(60);

  using Load = std::function<Result<std::shared_ptr<plugin::Library>>()>;
  /// Before the loop: calls `load` on the thread of the sink, and waits for it, kOpening at most.
  /// Fails as it does; with Io for want of a thread or of an answer.
  static Result<std::shared_ptr<PluginSink>> open(boost::asio::any_io_executor loop, Clock& clock,
                                                  std::string name, const Load& load,
                                                  Duration limit = kOpening);

  void consume(const telemetry::Record& record) override;
  void flush(TimePoint deadline) override;
  std::optional<telemetry::Cursor::Temporality> pulls() const override;
  void pull(const telemetry::Snapshot& snapshot) override;
  void finish(std::function<void()> done) override;
  SinkAccount account() const override;
  void watch_health() override;
  std::string ailment() const override;

 private:
  using Snapshot = std::shared_ptr<const telemetry::Snapshot>;
  struct Batch {
    std::vector<telemetry::Record> records;
    Snapshot series{};
    bool last = false;
  };
  /// Of what the plug-in does, readable while it is at it.
  struct Progress {
    std::atomic<std::uint64_t> taken{0};
    std::atomic<bool> checking{false};  // its health check is under way
  };
  PluginSink(boost::asio::any_io_executor loop, Clock& clock, std::string name);
  static Result<std::string> give(plugin::Library& library, Progress& progress, const Batch& batch);
  void hand_over();
  void handed_over(const Result<std::string>& trouble);
  void look_at_health();
  void check();
  void pass_log_on();
  void failed(const std::string& why);

  Clock& clock_;
  std::shared_ptr<plugin::Library> library_;  // with the thread
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  BoundedQueue<telemetry::Record, size_of_record> queue_{kMost};
  Snapshot series_;
  std::uint64_t given_ = 0;  // records and series in all
  std::size_t in_hand_ = 0;  // of them, those that the thread has now
  bool pausing_ = false, busy_ = false, closed_ = false, checks_ = false;
  std::unique_ptr<Alarm> pause_, next_look_;
  std::optional<TimePoint> checking_since_;
  std::string trouble_, ailment_;
  std::function<void()> finished_;
  Lifetime lifetime_;
  files::BlockingCalls calls_;
};

}  // namespace elastrun::exporter
