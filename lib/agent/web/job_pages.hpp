// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/web/health.hpp"
#include "agent/web/job_view.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/json.hpp"
#include "core/lifetime.hpp"
#include "http/http_server.hpp"
#include "spec/job_spec.hpp"

#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// The values of the page's charts since the job began, so that a page shows them whenever it is
/// opened. A point for each stretch of time; at kPoints every second one goes, and stretches become
/// twice as long: a job of weeks takes no more memory than one of minutes. Pure.
class JobHistory {
 public:
  using Values = std::vector<std::pair<std::string, double>>;
  static constexpr std::size_t kPoints = 240;
  static constexpr std::size_t kSeries = 32;  // names; the values of others are left out
  static constexpr Duration kFirstStretch = std::chrono::seconds(2);

  Duration stretch() const { return stretch_; }
  /// Left out while the stretch of the last point lasts.
  void add(TimePoint now, WallTime at, const Values& values);
  /// {"at": [seconds since the epoch, ...], "series": {NAME: [value or null, ...], ...}}
  json::object text() const;

 private:
  struct Point {
    TimePoint time;
    WallTime at;
    std::vector<double> values;  // by index in names_, shorter where names came later; NaN: none
  };
  std::size_t index_of(const std::string& name);

  Duration stretch_ = kFirstStretch;
  std::vector<std::string> names_;
  std::deque<Point> points_;
};

/// What --http serves: `/` a page that shows the job and changes by itself, `/status` the same as
/// JSON, `/events` what the page listens to, `/metrics` for Prometheus, `/healthz`, `/readyz`.
/// Read-only. Without a client only the points of the history are collected.
class JobPages {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    const JobView& view;
    std::function<const std::vector<workers::Worker>*()> workers;
    std::function<Vitals()> vitals;
    /// The page of metrics, as OpenMetrics or in Prometheus' older text, once it is there.
    std::function<void(bool open, std::function<void(std::string)>)> metrics;
    /// What the machine does, as a JSON object, once it is known.
    std::function<void(std::function<void(json::object)>)> system;
  };

  /// Listens from now on. Fails with Io, and says whose the port is.
  static Result<std::unique_ptr<JobPages>> open(Parts parts, const spec::ListenAddress& at);
  explicit JobPages(Parts parts);

  const net::Endpoint& at() const { return server_->at(); }
  /// The job stands otherwise now.
  void changed();

 private:
  void serve(const http::Request& request, const http::Reply& reply);
  void serve_events(const http::Reply& reply);
  void serve_metrics(const http::Request& request, const http::Reply& reply);
  void look_again();
  void remember();
  void tell_status();
  void tell_output(bool all);
  void tell_system();
  std::string output_event(bool all);

  const Parts parts_;
  std::shared_ptr<http::EventFeed> feed_ = std::make_shared<http::EventFeed>();
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<Alarm> look_, soon_, remember_;
  JobHistory history_;
  int looks_ = 0;
  bool looking_ = false, telling_ = false, sampling_ = false;
  std::vector<std::string> output_;  // of each worker, as it was told last
  Lifetime lifetime_;                // answers may come after we have gone
};

/// Whether TORCHELASTIC_HEALTH_CHECK_PORT is set. If not, that is told as torch's agent does.
bool is_health_check_wanted(const std::vector<std::string>& environment);
/// The server for it: each path answers as `/healthz` does, on all
/// addresses, since a supervisor asks from outside. Null if the variable cannot be used, which is
/// said. Lives as long as the agent; torch's own only while workers run.
std::unique_ptr<http::Server> open_health_check(boost::asio::io_context& loop, Clock& clock,
                                                const std::vector<std::string>& environment,
                                                std::function<Vitals()> vitals);

}  // namespace elastrun::agent
