// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "export/metrics_sink.hpp"
#include "export/stream_sink.hpp"
#include "files/blocking_calls.hpp"
#include "logs/console.hpp"
#include "process/launcher.hpp"
#include "spec/job_spec.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Makes the sinks that --metrics and the job file name. Before the loop runs: what can be found
/// out about a file or an address then is an error of the start, not a loss of the run.
class MetricsSinks {
 public:
  /// Borrowed by the sinks.
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    files::BlockingCalls& files;  // for their files alone
    process::Launcher& programs;
    logs::Console& console;
    std::vector<std::string> environment;  // of the agent, for programs and headers
  };
  MetricsSinks(Parts parts, const spec::JobSpec& spec) : parts_(std::move(parts)), spec_(spec) {}

  /// Fails with Usage or Io; names the sink, and what was wrong with it. May wait for a file
  /// system, for five minutes at most.
  Result<std::shared_ptr<exporter::MetricsSink>> make(const spec::SinkChoice& sink) const;
  /// What the sink takes: a record that fits one of them.
  static std::vector<telemetry::Selector> selectors_of(const spec::SinkChoice& sink);

 private:
  using Made = Result<std::shared_ptr<exporter::MetricsSink>>;
  Made make_console(const spec::SinkChoice& sink) const;
  Result<std::unique_ptr<exporter::PieceWriter>> open_stream(const spec::SinkChoice& sink) const;
  Made make_stream(const spec::SinkChoice& sink) const;
  Made make_page(const spec::SinkChoice& sink) const;
  Made make_tensorboard(const spec::SinkChoice& sink) const;
  Made make_otlp(const spec::SinkChoice& sink) const;
  Made make_program(const spec::SinkChoice& sink) const;
  std::string path_of(const spec::SinkChoice& sink) const;
  bool may_share(const spec::SinkChoice& sink) const;
  std::string instance() const;
  std::vector<telemetry::Attribute> resource() const;

  const Parts parts_;
  const spec::JobSpec& spec_;
};

/// `%h` is the name of this machine, `%i` the id of the run, `%p` our pid, `%%` a percent sign:
/// so that nodes with one file system can have a file each. Other pairs stay.
std::string path_for_node(std::string_view path, std::string_view run_id);

}  // namespace elastrun::agent
