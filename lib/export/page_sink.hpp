// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/lifetime.hpp"
#include "export/exposition.hpp"
#include "export/metrics_sink.hpp"
#include "files/blocking_calls.hpp"

#include <string>

namespace elastrun::exporter {

/// The page that Prometheus would scrape, as a file that is replaced at once: for the textfile
/// collector of node_exporter, or for people. Only the newest page waits.
class PageSink final : public MetricsSink {
 public:
  /// The page of an agent that has not recorded anything. May wait for the file system. Fails with
  /// Io if there can be no such file.
  static Status put_empty(const std::string& path, PageForm form);

  /// Borrows `calls`.
  PageSink(files::BlockingCalls& calls, std::string name, std::string path, PageForm form,
           PageOptions options);
  bool is_told() const override { return false; }
  bool pulls() const override { return true; }
  void pull(const telemetry::Snapshot& snapshot) override;
  void finish(std::function<void()> done) override;
  SinkAccount account() const override;

 private:
  void write_out();

  files::BlockingCalls& calls_;
  const std::string path_;
  const PageForm form_;
  const PageOptions options_;
  std::optional<std::string> waiting_;
  bool writing_ = false;
  std::uint64_t delivered_ = 0, lost_ = 0;
  std::string trouble_;
  std::function<void()> finished_;
  Lifetime lifetime_;
};

}  // namespace elastrun::exporter
