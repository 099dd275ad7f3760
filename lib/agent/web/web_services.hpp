// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/telemetry/run_metrics.hpp"
#include "agent/web/job_pages.hpp"
#include "agent/web/job_view.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "spec/job_spec.hpp"
#include "system/machine.hpp"
#include "workers/group.hpp"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elastrun::agent {

/// A page that costs the loop time: requests soon after another get the same one, so that
/// rendering takes at most a tenth of the loop's time, however many ask. Pure.
class RenderedPage {
 public:
  static constexpr Duration kOldest = std::chrono::seconds(5);  // less than scrapers' intervals

  bool is_fresh(TimePoint now) const { return now < fresh_until_; }
  const std::string& text() const { return text_; }
  void put(std::string text, TimePoint begun, TimePoint done) {
    text_ = std::move(text);
    fresh_until_ = done + std::min(9 * (done - begun), kOldest);
  }

 private:
  std::string text_;
  TimePoint fresh_until_ = TimePoint::min();
};

/// What an agent serves over HTTP, with all it takes: the view of the job, the pages of --http and
/// the health check. Made only for a job that has one of both.
class WebServices {
 public:
  struct Parts {
    boost::asio::io_context& loop;
    Clock& clock;
    const spec::JobSpec& spec;
    std::function<const workers::Group*()> group;
    std::function<bool()> serves_store;
    std::function<json::value()> goodput;
    std::function<std::string()> report;  // where it will be, if it stays
    std::function<std::optional<Duration>()> overdue_timer;
    RunMetrics* metrics = nullptr;                   // with --http or --metrics
    std::function<void(std::string_view line)> say;  // where the pages are
  };
  /// Listens from now on, if anything is asked for; else null. Fails with Io where --http cannot; a
  /// health check that cannot is only warned of.
  static Result<std::unique_ptr<WebServices>> start(Parts parts);

  WebServices(const WebServices&) = delete;
  WebServices& operator=(const WebServices&) = delete;

  /// Of --http; empty without.
  std::string address() const;
  /// To be told what the agent does.
  JobView& view() { return view_; }

 private:
  explicit WebServices(Parts parts);
  Status open();
  JobView::Sources view_sources();
  JobPages::Parts page_parts();
  const std::vector<workers::Worker>* workers() const;
  Vitals vitals() const;
  void metrics(bool open, std::function<void(std::string)> then);
  const std::string& render(bool open, const system::MachineSample& sample);
  std::vector<telemetry::Attribute> resource() const;

  const Parts parts_;
  JobView view_;
  LoopBeat beat_;
  RenderedPage page_, open_page_;
  std::unique_ptr<JobPages> pages_;
  std::unique_ptr<http::Server> health_check_;
  Lifetime lifetime_;
};

/// A sample for the page: what people look at first. Pure.
json::object machine_json(const system::MachineSample& sample);

}  // namespace elastrun::agent
