// SPDX-License-Identifier: Apache-2.0

#include "agent/web/job_pages.hpp"

#include "agent/web/page.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "export/exposition.hpp"
#include "store/listening.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Five digits are more than a chart shows. By text: a logarithm would bring libm's 300 kB.
json::value shown(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  return parse_float(fmt::format("{:.5g}", value)).value_or(value);
}

}  // namespace

std::size_t JobHistory::index_of(const std::string& name) {
  const auto found = std::ranges::find(names_, name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  // The names are the workers', and a script may invent one at each step.
  if (names_.size() == kSeries) return kSeries;
  names_.push_back(name);
  return names_.size() - 1;
}

void JobHistory::add(TimePoint now, WallTime at, const Values& values) {
  // A sample that comes a little early is not put off by a whole stretch.
  if (!points_.empty() && now < points_.back().time + stretch_ * 3 / 4) return;
  Point point{now, at, {}};
  for (const auto& [name, value] : values) {
    const auto index = index_of(name);
    if (index == kSeries) continue;
    if (point.values.size() <= index) point.values.resize(index + 1, kNone);
    point.values[index] = value;
  }
  points_.push_back(std::move(point));
  if (points_.size() <= kPoints) return;
  // Each second point goes: a job of weeks fits, and the chart still begins where the job does.
  std::deque<Point> half;
  for (std::size_t i = 0; i < points_.size(); i += 2) half.push_back(std::move(points_[i]));
  points_ = std::move(half);
  stretch_ *= 2;
}

json::object JobHistory::text() const {
  json::array at;
  std::vector<json::array> columns(names_.size());
  for (const auto& point : points_) {
    at.emplace_back(
        static_cast<double>(point.at.time_since_epoch() / std::chrono::milliseconds(100)) / 10);
    for (std::size_t i = 0; i < names_.size(); ++i) {
      columns[i].push_back(shown(i < point.values.size() ? point.values[i] : kNone));
    }
  }
  json::object series;
  for (std::size_t i = 0; i < names_.size(); ++i) series[names_[i]] = std::move(columns[i]);
  return {{"at", std::move(at)}, {"series", std::move(series)}};
}

namespace {

constexpr std::string_view kPagesArea = "http";
constexpr std::string_view kJson = "application/json";
constexpr std::string_view kPort = "TORCHELASTIC_HEALTH_CHECK_PORT";
constexpr Duration kPageLook = std::chrono::seconds(1);    // of a page that is open
constexpr Duration kSoon = std::chrono::milliseconds(50);  // changes in a row are told together
constexpr int kLooksPerSample = 2;                         // of the machine
constexpr int kLooksPerComment = 15;                       // finds who has gone without a word
constexpr std::size_t kLines = 12;                         // of each stream of each worker

http::Answer json_answer(const json::value& value, int status = 200) {
  return {.status = status, .type = std::string(kJson), .body = json::serialize(value) + "\n"};
}

http::Answer health_answer(const Vitals& vitals) {
  return json_answer(health_json(vitals), ailments(vitals).empty() ? 200 : 503);
}

/// For a readiness probe: not while nodes join, workers stop, or a round begins again.
http::Answer ready_answer(const JobView& view) {
  const bool ready = view.is_ready();
  return json_answer(json::object{{"ready", ready}, {"phase", view.phase_name()}},
                     ready ? 200 : 503);
}

http::Answer page_answer() {
  http::Answer answer{.type = "text/html; charset=utf-8", .body = std::string(page_html())};
  // The page is one file, and shows what strangers have printed: nothing else may run in it.
  answer.headers = {{"Content-Security-Policy",
                     "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                     "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
                     "frame-ancestors 'none'"},
                    {"Referrer-Policy", "no-referrer"}};
  return answer;
}

/// What the charts of the page show, by name.
JobHistory::Values chart_values(const json::object& status, const json::object& machine) {
  JobHistory::Values values;
  const auto add = [&values](std::string name, const json::value* value) {
    if (value != nullptr && value->is_number()) {
      values.emplace_back(std::move(name), value->to_number<double>());
    }
  };
  std::optional<double> rate;  // the slowest worker's: the others wait for it
  for (const auto& worker : status.at("workers").as_array()) {
    const auto& one = worker.at("steps_per_s");
    if (one.is_number()) rate = std::min(rate.value_or(HUGE_VAL), one.to_number<double>());
  }
  if (rate) values.emplace_back("rate", *rate);
  if (const auto* goodput = status.at("goodput").if_object()) {
    add("goodput", goodput->if_contains("goodput"));
  }
  for (const auto& metric : status.at("metrics").as_array()) {
    const auto& group = metric.at("group").as_string();
    const auto& name = metric.at("name").as_string();
    add(fmt::format("metric/{}/{}", group.c_str(), name.c_str()),
        metric.as_object().if_contains("value"));
  }
  for (const auto& [name, value] : machine.at("charts").as_object()) add(name, &value);
  return values;
}

http::Answer not_found() {
  return {.status = 404, .body = "there are /, /status, /events, /metrics, /healthz and /readyz\n"};
}

json::array lines_json(const std::vector<std::string>& lines) {
  json::array all;
  for (const auto& line : lines) all.emplace_back(printable(line));
  return all;
}

Error with_owner(Error error, std::uint16_t port) {
  const auto owner = port == 0 ? std::string() : store::find_port_owner(port);
  if (!owner.empty()) error.text += ": " + owner + " listens there";
  return error;
}

}  // namespace

JobPages::JobPages(Parts parts)
    : parts_(std::move(parts)),
      look_(parts_.clock.make_alarm()),
      soon_(parts_.clock.make_alarm()),
      remember_(parts_.clock.make_alarm()) {}

Result<std::unique_ptr<JobPages>> JobPages::open(Parts parts, const spec::ListenAddress& at) {
  auto& loop = parts.loop;
  auto& clock = parts.clock;
  auto pages = std::make_unique<JobPages>(std::move(parts));
  auto server = http::Server::open(
      loop, clock, {.at = {at.address, at.port}},
      // The server is a part of the pages and goes with them.
      [self = pages.get()](const auto& request, auto reply) { self->serve(request, reply); });
  if (!server) {
    auto error = with_owner(server.error().context("--http"), at.port);
    error.text += "; choose another port, or 0 for one that is free";
    return std::unexpected(std::move(error));
  }
  pages->server_ = std::move(*server);
  pages->remember();
  return pages;
}

void JobPages::serve(const http::Request& request, const http::Reply& reply) {
  if (request.path == "/") return reply(page_answer());
  if (request.path == "/status") return reply(json_answer(parts_.view.status()));
  if (request.path == "/healthz") return reply(health_answer(parts_.vitals()));
  if (request.path == "/readyz") return reply(ready_answer(parts_.view));
  if (request.path == "/metrics") return serve_metrics(request, reply);
  if (request.path == "/events") return serve_events(reply);
  reply(not_found());
}

void JobPages::serve_metrics(const http::Request& request, const http::Reply& reply) {
  const bool open = exporter::form_for(request.accept) == exporter::PageForm::OpenMetrics;
  parts_.metrics(open, [reply, open](std::string text) {
    const auto type = open ? exporter::kOpenMetricsType : exporter::kPrometheusType;
    reply({.type = std::string(type), .body = std::move(text)});
  });
}

void JobPages::serve_events(const http::Reply& reply) {
  http::Answer answer{.type = "text/event-stream", .feed = feed_};
  // The browser connects again after a second (HTML Standard, 9.2): the default is its own, and
  // longer. All that is known comes first, because events only tell what changes.
  answer.body = "retry: 1000\n\n" +
                http::event_text("status", json::serialize(parts_.view.status())) +
                http::event_text("history", json::serialize(history_.text())) + output_event(true);
  reply(std::move(answer));
  tell_system();
  if (looking_) return;
  looking_ = true;
  look_->arm(parts_.clock.now() + kPageLook, [this] { look_again(); });
}

/// The next point of the history, also while no page is open.
void JobPages::remember() {
  remember_->arm(parts_.clock.now() + history_.stretch(), [this] {
    if (parts_.view.is_over()) return;
    tell_system();
    remember();
  });
}

/// Only while a page is open.
void JobPages::look_again() {
  ++looks_;
  if (looks_ % kLooksPerComment == 0) feed_->publish_nothing();
  looking_ = feed_->has_listeners();
  if (!looking_) return;
  tell_status();
  tell_output(false);
  if (looks_ % kLooksPerSample == 0) tell_system();
  look_->arm(parts_.clock.now() + kPageLook, [this] { look_again(); });
}

void JobPages::changed() {
  if (!looking_) return;
  if (parts_.view.is_over()) return tell_status();  // there may be no later
  if (telling_) return;
  telling_ = true;
  soon_->arm(parts_.clock.now() + kSoon, [this] {
    telling_ = false;
    tell_status();
    tell_output(false);
  });
}

void JobPages::tell_status() {
  feed_->publish("status", json::serialize(parts_.view.status()));
}

std::string JobPages::output_event(bool all) {
  json::array changed;
  const auto* workers = parts_.workers();
  const std::size_t count = workers == nullptr ? 0 : workers->size();
  output_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& worker = (*workers)[i];
    if (!worker.streams) continue;
    json::object one{{"rank", worker.rank}, {"pid", worker.pid}};
    one["out"] = lines_json(worker.streams->last_stdout_lines(kLines));
    one["err"] = lines_json(worker.streams->last_lines(kLines));
    one["mixed"] = worker.streams->mixes_streams();
    auto text = json::serialize(one);
    // Most workers have written nothing since the last look, and a page of hundreds would get all
    // their lines each second.
    if (!all && text == output_[i]) continue;
    output_[i] = std::move(text);
    changed.push_back(std::move(one));
  }
  return changed.empty() ? std::string() : http::event_text("output", json::serialize(changed));
}

void JobPages::tell_output(bool all) {
  feed_->publish_text(output_event(all));
}

void JobPages::tell_system() {
  if (sampling_ || !parts_.system) return;
  sampling_ = true;
  parts_.system([this, alive = lifetime_.token()](const json::object& sample) {
    if (!alive) return;
    sampling_ = false;
    const auto values = chart_values(parts_.view.status(), sample);
    // Also without a reader: a page that is opened later begins with it.
    history_.add(parts_.clock.now(), parts_.clock.wall(), values);
    if (!feed_->has_listeners()) return;
    json::object text = sample;
    json::object charts;
    for (const auto& [name, value] : values) charts[name] = value;
    text["charts"] = std::move(charts);
    text["at"] = to_seconds(parts_.clock.wall());
    feed_->publish("system", json::serialize(text));
  });
}

bool is_health_check_wanted(const std::vector<std::string>& environment) {
  if (workers::find_variable(environment, kPort)) return true;
  log::info(kPagesArea, "Environment variable '{}' not found. Do not start health check.", kPort);
  return false;
}

std::unique_ptr<http::Server> open_health_check(boost::asio::io_context& loop, Clock& clock,
                                                const std::vector<std::string>& environment,
                                                std::function<Vitals()> vitals) {
  const auto text = workers::find_variable(environment, kPort);
  if (!text) return nullptr;
  log::info(kPagesArea, "Found healthcheck port {}: {}", kPort, printable(std::string(*text)));
  const auto port = parse_int(*text);
  if (!port) {
    log::warning(
        kPagesArea,
        "Invalid healthcheck port value: '{}', expecting integer. Not starting healthcheck "
        "server.",
        printable(std::string(*text)));
    return nullptr;
  }
  if (*port < 0 || *port > 65535) {
    log::warning(kPagesArea, "No health check server: {}={} is not a port", kPort, *port);
    return nullptr;
  }
  // At all addresses below, because a kubelet probes from outside of the pod.
  const auto number = static_cast<std::uint16_t>(*port);
  auto server = http::Server::open(
      loop, clock, {.at = {"::", number}},
      [vitals = std::move(vitals)](const http::Request&, const http::Reply& reply) {
        reply(health_answer(vitals()));
      });
  if (!server) {
    // Agents of one machine share the variable; all but one of them go without.
    const auto error = with_owner(server.error(), number);
    log::warning(kPagesArea, "No health check server: {}", error.text);
    return nullptr;
  }
  log::info(kPagesArea, "Health check server on port {}", (*server)->at().port);
  return std::move(*server);
}

}  // namespace elastrun::agent
