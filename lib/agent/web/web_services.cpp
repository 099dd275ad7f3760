// SPDX-License-Identifier: Apache-2.0

#include "agent/web/web_services.hpp"

#include "core/host.hpp"
#include "core/lifetime.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "export/exposition.hpp"
#include "goodput/account/job_account.hpp"
#include "http/http_server.hpp"
#include "net/endpoint.hpp"
#include "store/server.hpp"
#include "system/machine.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <limits>
#include <optional>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

/// Over how long the rate of steps is counted.
constexpr Duration kRateOver = std::chrono::seconds(10);

std::string_view state_of(const workers::Worker& worker) {
  if (worker.abandoned) return "abandoned";
  if (!worker.exit) return worker.returned ? "returned" : "running";
  if (worker.succeeded()) return "succeeded";
  return worker.stopped_by_us ? "stopped" : "failed";
}

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Five digits are more than a chart shows. By text: a logarithm would bring libm's 300 kB.
json::value shown(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == 0) return 0;
  return parse_float(fmt::format("{:.5g}", value)).value_or(value);
}

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
JobHistory::Values chart_values(const json::object& status, const system::MachineSample& machine) {
  JobHistory::Values values;
  const auto add = [&values](std::string name, const json::value& value) {
    if (value.is_number()) values.emplace_back(std::move(name), value.to_number<double>());
  };
  std::optional<double> rate;  // the slowest worker's: the others wait for it
  for (const auto& worker : status.at("workers").as_array()) {
    const auto& one = worker.at("steps_per_s");
    if (one.is_number()) rate = std::min(rate.value_or(HUGE_VAL), one.to_number<double>());
  }
  if (rate) values.emplace_back("rate", *rate);
  const auto* step = find_member(status.at("goodput"), "last_step");
  if (step != nullptr && !step->is_null())  // of a range the lower end
    add("goodput", status.at("goodput").at("goodput_at_least"));
  for (const auto& metric : status.at("metrics").as_array()) {
    const auto& group = metric.at("group").as_string();
    const auto& name = metric.at("name").as_string();
    add(fmt::format("metric/{}/{}", group.c_str(), name.c_str()), metric.at("value"));
  }
  if (machine.cpu_utilization) values.emplace_back("cpu", *machine.cpu_utilization);
  values.emplace_back("network", machine.received_per_s + machine.sent_per_s);
  values.emplace_back("disk", machine.disk_read_per_s + machine.disk_written_per_s);
  if (machine.memory && machine.memory->total > 0) {
    values.emplace_back("memory", static_cast<double>(machine.memory->used()) /
                                      static_cast<double>(machine.memory->total));
  }
  for (const auto& gpu : machine.gpus) {
    if (gpu.utilization) values.emplace_back(fmt::format("gpu{}", gpu.index), *gpu.utilization);
  }
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

json::array workers_json(const std::vector<system::WorkerUse>& workers) {
  json::array all;
  for (const auto& one : workers) {
    all.push_back({{"rank", one.worker.rank},
                   {"cpu", or_null(one.cores)},
                   {"rss", one.use.resident_bytes},
                   {"threads", one.use.threads},
                   {"read_per_s", one.read_per_s},
                   {"written_per_s", one.written_per_s}});
  }
  return all;
}

json::array gpus_json(const std::vector<system::GpuUse>& gpus) {
  json::array all;
  for (const auto& gpu : gpus) {
    json::array throttled(gpu.throttled_by.begin(), gpu.throttled_by.end());
    all.push_back({{"index", gpu.index},
                   {"name", gpu.name},
                   {"utilization", or_null(gpu.utilization)},
                   {"memory_used", or_null(gpu.memory_used)},
                   {"memory_total", or_null(gpu.memory_total)},
                   {"power", or_null(gpu.power)},
                   {"temperature", or_null(gpu.temperature)},
                   {"throttled_by", std::move(throttled)},
                   {"xid", gpu.last_xid}});
  }
  return all;
}

/// A sample for the page: what people look at first.
json::object machine_json(const system::MachineSample& sample) {
  json::object text;
  json::object cpu{{"utilization", or_null(sample.cpu_utilization)},
                   {"load", or_null(sample.load)}};
  cpu["count"] = sample.cpu ? json::value(sample.cpu->cpus) : nullptr;
  text["cpu"] = std::move(cpu);
  if (sample.memory) {
    text["memory"] = {{"used", sample.memory->used()}, {"total", sample.memory->total}};
  }
  text["network"] = {{"received_per_s", sample.received_per_s}, {"sent_per_s", sample.sent_per_s}};
  text["disk"] = {{"read_per_s", sample.disk_read_per_s},
                  {"written_per_s", sample.disk_written_per_s}};
  text["workers"] = workers_json(sample.workers);
  text["gpus"] = gpus_json(sample.gpus);
  return text;
}

}  // namespace

json::object JobView::worker_json(const workers::Worker& worker) const {
  const auto held = held_.find(worker.rank);
  const auto found = steps_.find(worker.rank);
  json::value step, age, rate;
  if (found != steps_.end()) {
    const auto& steps = found->second;
    const double passed = to_seconds(run_.clock.now() - steps.at);
    step = steps.last, age = passed;
    // One that stands still has not the pace of before.
    rate = steps.rate * passed > 1 ? 1 / passed : steps.rate;
  }
  return {{"rank", worker.rank},
          {"local_rank", worker.local_rank},
          {"pid", worker.pid},
          {"state", state_of(worker)},
          {"end", worker.exit ? json::value(worker.exit->status.text()) : nullptr},
          {"held", held != held_.end() ? json::value(held->second) : nullptr},
          {"step", std::move(step)},
          {"step_age_s", std::move(age)},
          {"steps_per_s", std::move(rate)}};
}

json::object JobView::restarts_json() const {
  json::array latest;
  for (const auto& one : restarts_) {
    json::object text{{"text", printable(one.cause.text)},
                      {"node", one.cause.node},
                      {"rank", one.cause.rank >= 0 ? json::value(one.cause.rank) : nullptr},
                      {"at", to_seconds(one.at)},
                      {"round", one.round},
                      {"spent", one.spent}};
    if (!one.role.empty()) text["role"] = one.role;
    latest.push_back(std::move(text));
  }
  return {{"count", restart_count_},
          {"spent", spent_},
          {"left", restarts_left_},
          {"limit", run_.spec.max_restarts},
          {"latest", std::move(latest)}};
}

json::array JobView::metrics_json() const {
  json::array all;
  for (const auto& [name, metric] : metrics_) {
    all.push_back({{"group", printable(name.first)},
                   {"name", printable(name.second)},
                   // JSON has no NaN and no infinity (RFC 8259, section 6); a browser would refuse
                   // the whole text.
                   {"value", std::isfinite(metric.value) ? json::value(metric.value) : nullptr},
                   {"rank", metric.counts ? json::value(nullptr) : json::value(metric.rank)}});
  }
  return all;
}

json::object JobView::status(json::value goodput) const {
  const auto now = run_.clock.now();
  json::object store{{"rendezvous", run_.spec.rdzv_backend}, {"workers", nullptr}};
  if (round_) {
    store["workers"] = net::format_endpoint(round_->master_addr, round_->master_port);
    store["served_here"] = store_.serves_workers();
  }
  const auto report = succeeded_ ? run_.lasting_report() : std::string();
  return {{"job", job_json()},
          {"node", {{"host", host_name()}, {"pid", ::getpid()}}},
          {"started", to_seconds(begun_wall_)},
          {"now", to_seconds(run_.clock.wall())},
          {"uptime_s", to_seconds(now - begun_)},
          {"phase", phase_name()},
          {"phase_text", phase_text(phase_)},
          {"phase_s", to_seconds(now - phase_since_)},
          {"progress", progress_},
          {"round", round_json()},
          {"store", std::move(store)},
          {"workers", workers_json()},
          {"restarts", restarts_json()},
          {"goodput", std::move(goodput)},
          {"metrics", metrics_json()},
          {"failure", text_or_null(failure_)},
          {"failed_rank", or_null(failed_rank_)},
          {"succeeded", or_null(succeeded_)},
          {"report", text_or_null(printable(report))}};
}

void JobView::step(int rank, std::int64_t number) {
  const auto now = run_.clock.now();
  auto [place, is_new] = steps_.try_emplace(rank);
  auto& steps = place->second;
  // Steps that go back were resumed: a rate over both parts would be wrong.
  if (is_new || number < steps.last) {
    steps = {number, now, number, now};
    return;
  }
  steps.last = number;
  steps.at = now;
  const auto passed = now - steps.base_at;
  // Over a few milliseconds the rate would jump.
  if (passed > std::chrono::milliseconds(200) || steps.rate == 0) {
    const double seconds = to_seconds(passed);
    if (seconds > 0) steps.rate = static_cast<double>(number - steps.base) / seconds;
  }
  if (passed < kRateOver) return;
  steps.base = number;
  steps.base_at = now;
}

void JobView::metric(int rank, const workers::MetricSample& sample) {
  const std::pair name(sample.group, sample.name);
  // The names are the workers': their number must not grow with the job.
  if (metrics_.size() >= kKeptMetrics && !metrics_.contains(name)) return;
  auto [place, is_new] = metrics_.try_emplace(name);
  auto& metric = place->second;
  metric.counts = sample.counts;
  if (sample.counts) {
    metric.value += sample.value;
  } else if (is_new || rank <= metric.rank) {
    // Of several ranks that tell a gauge, the lowest one's value: the chart would jump otherwise.
    metric.value = sample.value;
    metric.rank = rank;
  }
}

void JobView::on(const moment::Ended& seen) {
  succeeded_ = seen.result.ending.kind == Ending::Kind::Succeeded;
  // Now, because the group, of which later questions would read, goes with the run.
  last_workers_ = workers_json();
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

std::vector<std::string> ailments(const Vitals& vitals) {
  std::vector<std::string> all;
  if (vitals.since_beat > kHealthLimit) {
    all.push_back(
        fmt::format("the agent's loop stood still for {}", format_duration(vitals.since_beat)));
  }
  if (vitals.overdue && *vitals.overdue > kHealthLimit) {
    all.push_back(fmt::format("a worker lives on {} after one of its timers expired",
                              format_duration(*vitals.overdue)));
  }
  return all;
}

json::object health_json(const Vitals& vitals) {
  const auto why = ailments(vitals);
  json::object text;
  text["status"] = why.empty() ? "ok" : "failing";
  text["why"] = json::array(why.begin(), why.end());
  text["phase"] = vitals.phase;
  text["since_beat_s"] = to_seconds(vitals.since_beat);
  text["timer_overdue_s"] = vitals.overdue ? json::value(to_seconds(*vitals.overdue)) : nullptr;
  text["limit_s"] = to_seconds(kHealthLimit);
  return text;
}

class WebServices final : public Observer {
 public:
  WebServices(RunContext& run, RunTelemetry& telemetry, ExpirationTimers& timers,
              const RoundStore& store)
      : run_(run),
        telemetry_(telemetry),
        timers_(timers),
        view_(run, store),
        beat_(run.clock),
        look_(run.clock.make_alarm()),
        soon_(run.clock.make_alarm()),
        remember_(run.clock.make_alarm()) {}

  void heard(const Moment& one) override {
    view_.heard(one);
    // Steps and samples come too often: the next look has them.
    if (!std::holds_alternative<moment::WorkerSaid>(one)) changed();
  }

  Status open_pages() {
    const auto& at = *run_.spec.http;
    auto server = http::Server::open(
        run_.loop, run_.clock, {.at = {at.address, at.port}},
        [this](const auto& request, const auto& reply) { serve(request, reply); });
    if (!server) {
      auto error = with_owner(server.error().context("--http"), at.port);
      error.text += "; choose another port, or 0 for one that is free";
      return std::unexpected(std::move(error));
    }
    pages_ = std::move(*server);
    run_.console.write(logs::Console::Stream::Err,
                       fmt::format("elastrun: the job is shown at http://{}/\n",
                                   net::format_endpoint(pages_->at().host, pages_->at().port)));
    remember();
    // Only here, where a page may be asked for: from the first cursor on each sample of a worker is
    // a series as well.
    telemetry_.metrics()->host().take_samples();
    return {};
  }

  void open_health_check() {
    const auto text = find_variable(run_.environment, kPort);
    if (!text) return;
    log::info(kPagesArea, "Found healthcheck port {}: {}", kPort, printable(std::string(*text)));
    const auto port = parse_int(*text);
    if (!port) {
      log::warning(
          kPagesArea,
          "Invalid healthcheck port value: '{}', expecting integer. Not starting healthcheck "
          "server.",
          printable(std::string(*text)));
      return;
    }
    if (*port < 0 || *port > 65535) {
      return log::warning(kPagesArea, "No health check server: {}={} is not a port", kPort, *port);
    }
    // At all addresses below, because a kubelet probes from outside of the pod.
    const auto number = static_cast<std::uint16_t>(*port);
    auto server = http::Server::open(
        run_.loop, run_.clock, {.at = {"::", number}},
        [this](const http::Request&, const http::Reply& reply) { reply(health_answer(vitals())); });
    if (!server) {
      // Agents of one machine share the variable; all but one of them go without.
      const auto error = with_owner(server.error(), number);
      return log::warning(kPagesArea, "No health check server: {}", error.text);
    }
    log::info(kPagesArea, "Health check server on port {}", (*server)->at().port);
    health_check_ = std::move(*server);
  }

 private:
  void serve(const http::Request& request, const http::Reply& reply) {
    if (request.path == "/") return reply(page_answer());
    if (request.path == "/status") return reply(json_answer(status()));
    if (request.path == "/healthz") return reply(health_answer(vitals()));
    if (request.path == "/readyz") return reply(ready_answer(view_));
    if (request.path == "/metrics") return serve_metrics(request, reply);
    if (request.path == "/events") return serve_events(reply);
    reply(not_found());
  }
  void serve_events(const http::Reply& reply) {
    http::Answer answer{.type = "text/event-stream", .feed = feed_};
    // The browser connects again after a second (HTML Standard, 9.2): the default is its own, and
    // longer. All that is known comes first, because events only tell what changes.
    answer.body = "retry: 1000\n\n" + http::event_text("status", json::serialize(status())) +
                  http::event_text("history", json::serialize(history_.text())) +
                  output_event(true);
    reply(std::move(answer));
    tell_system();
    if (looking_) return;
    looking_ = true;
    look_->arm(run_.clock.now() + kPageLook, [this] { look_again(); });
  }
  void serve_metrics(const http::Request& request, const http::Reply& reply) {
    const bool open = exporter::form_for(request.accept) == exporter::PageForm::OpenMetrics;
    const auto answer = [reply, open](const std::string& text) {
      const auto type = open ? exporter::kOpenMetricsType : exporter::kPrometheusType;
      reply({.type = std::string(type), .body = text});
    };
    const auto& page = open ? open_page_ : page_;
    // Several scrapers must not cost a collection each.
    if (page.is_fresh(run_.clock.now())) return answer(page.text());
    telemetry_.metrics()->machine().look(
        [this, open, answer, alive = lifetime_.token()](const system::MachineSample& sample) {
          if (alive) answer(render(open, sample));
        });
  }
  void changed() {
    if (!looking_) return;
    if (view_.is_over()) return tell_status();  // there may be no later
    if (telling_) return;
    telling_ = true;
    soon_->arm(run_.clock.now() + kSoon, [this] {
      telling_ = false;
      tell_status();
      tell_output();
    });
  }
  // Only while a page is open.
  void look_again() {
    ++looks_;
    if (looks_ % kLooksPerComment == 0) feed_->publish_nothing();
    looking_ = feed_->has_listeners();
    if (!looking_) return;
    tell_status();
    tell_output();
    if (looks_ % kLooksPerSample == 0) tell_system();
    look_->arm(run_.clock.now() + kPageLook, [this] { look_again(); });
  }
  // The next point of the history, also while no page is open.
  void remember() {
    remember_->arm(run_.clock.now() + history_.stretch(), [this] {
      if (view_.is_over()) return;
      tell_system();
      remember();
    });
  }
  void tell_status() { feed_->publish("status", json::serialize(status())); }
  void tell_output() { feed_->publish_text(output_event(false)); }

  void tell_system() {
    if (std::exchange(sampling_, true)) return;
    telemetry_.metrics()->machine().look(
        [this, alive = lifetime_.token()](const system::MachineSample& sample) {
          if (!alive) return;
          sampling_ = false;
          auto text = machine_json(sample);
          const auto values = chart_values(status(), sample);
          // Also without a reader: a page that is opened later begins with it.
          history_.add(run_.clock.now(), run_.clock.wall(), values);
          if (!feed_->has_listeners()) return;
          json::object charts;
          for (const auto& [name, value] : values) charts[name] = value;
          text["charts"] = std::move(charts);
          text["at"] = to_seconds(run_.clock.wall());
          feed_->publish("system", json::serialize(text));
        });
  }

  std::string output_event(bool all) {
    json::array changed;
    const auto* group = run_.workers();
    const std::size_t count = group == nullptr ? 0 : group->size();
    output_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto& worker = (*group)[i];
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

  json::object status() const { return view_.status(telemetry_.goodput_status()); }
  Vitals vitals() const { return {beat_.since(), timers_.overdue(), view_.phase_name()}; }
  // Renders once for all who have waited for one look at the machine.
  const std::string& render(bool open, const system::MachineSample& sample) {
    auto& page = open ? open_page_ : page_;
    const auto begun = run_.clock.now();
    if (page.is_fresh(begun)) return page.text();
    auto& metrics = *telemetry_.metrics();
    auto snapshot = metrics.host().registry().collect();
    std::ranges::move(metrics.machine().points_of(sample), std::back_inserter(snapshot.points));
    using exporter::PageForm;
    auto text = exporter::page_of(snapshot, open ? PageForm::OpenMetrics : PageForm::Prometheus,
                                  {.resource = resource(), .tells_refused = true});
    page.put(std::move(text), begun, run_.clock.now());
    return page.text();
  }
  std::vector<telemetry::Attribute> resource() const {
    return {{"service.name", std::string("elastrun.agent")},
            {"elastrun.run.id", run_.spec.run_id},
            {"elastrun.role", run_.spec.role},
            {"host.name", host_name()},
            {"process.pid", std::int64_t{::getpid()}}};
  }

  RunContext& run_;
  RunTelemetry& telemetry_;
  ExpirationTimers& timers_;
  JobView view_;
  LoopBeat beat_;
  RenderedPage page_, open_page_;
  std::shared_ptr<http::EventFeed> feed_ = std::make_shared<http::EventFeed>();
  std::unique_ptr<http::Server> pages_, health_check_;
  std::unique_ptr<Alarm> look_, soon_, remember_;
  JobHistory history_;
  int looks_ = 0;
  bool looking_ = false, telling_ = false, sampling_ = false;
  std::vector<std::string> output_;  // of each worker, as it was told last
  Lifetime lifetime_;                // answers may come after we have gone
};

Result<std::unique_ptr<Observer>> start_web_services(RunContext& run, RunTelemetry& telemetry,
                                                     ExpirationTimers& timers,
                                                     const RoundStore& store) {
  const bool health_check = find_variable(run.environment, kPort).has_value();
  if (!health_check) {
    // As torchelastic says it.
    log::info(kPagesArea, "Environment variable '{}' not found. Do not start health check.", kPort);
  }
  if (!run.spec.http && !health_check) return nullptr;
  auto services = std::make_unique<WebServices>(run, telemetry, timers, store);
  services->open_health_check();
  if (!run.spec.http) return services;
  if (const auto opened = services->open_pages(); !opened) return std::unexpected(opened.error());
  return services;
}

}  // namespace elastrun::agent
