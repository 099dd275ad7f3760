// SPDX-License-Identifier: Apache-2.0
#include "agent/web/web_services.hpp"

#include "core/host_name.hpp"
#include "core/text.hpp"
#include "export/exposition.hpp"
#include "workers/environment.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

/// null and not 0: what cannot be measured here is not idle.
json::value maybe(const auto& value) {
  return value ? json::value(*value) : json::value(nullptr);
}

json::array workers_json(const std::vector<system::WorkerUse>& workers) {
  json::array all;
  for (const auto& one : workers) {
    all.push_back({{"rank", one.worker.rank},
                   {"cpu", maybe(one.cores)},
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
                   {"utilization", maybe(gpu.utilization)},
                   {"memory_used", maybe(gpu.memory_used)},
                   {"memory_total", maybe(gpu.memory_total)},
                   {"power", maybe(gpu.power)},
                   {"temperature", maybe(gpu.temperature)},
                   {"throttled_by", std::move(throttled)},
                   {"xid", gpu.last_xid}});
  }
  return all;
}

json::object charts_json(const system::MachineSample& sample) {
  json::object charts{{"cpu", maybe(sample.cpu_utilization)},
                      {"network", sample.received_per_s + sample.sent_per_s},
                      {"disk", sample.disk_read_per_s + sample.disk_written_per_s}};
  if (sample.memory && sample.memory->total > 0) {
    charts["memory"] =
        static_cast<double>(sample.memory->used()) / static_cast<double>(sample.memory->total);
  }
  for (const auto& gpu : sample.gpus) {
    charts[fmt::format("gpu{}", gpu.index)] = maybe(gpu.utilization);
  }
  return charts;
}

}  // namespace

json::object machine_json(const system::MachineSample& sample) {
  json::object text;
  json::object cpu{{"utilization", maybe(sample.cpu_utilization)}, {"load", maybe(sample.load)}};
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
  text["charts"] = charts_json(sample);
  return text;
}

Result<std::unique_ptr<WebServices>> WebServices::start(Parts parts) {
  // Asked in any case: it logs that there is none, as torchelastic does.
  const bool health_check = is_health_check_wanted(workers::own_environment());
  if (!parts.spec.http && !health_check) return nullptr;
  std::unique_ptr<WebServices> services(new WebServices(std::move(parts)));
  if (const auto opened = services->open(); !opened) return std::unexpected(opened.error());
  const auto& made = services->parts_;
  if (made.spec.http) {
    made.say(fmt::format("elastrun: the job is shown at {}\n", services->address()));
  }
  return services;
}

WebServices::WebServices(Parts parts)
    : parts_(std::move(parts)),
      view_(parts_.spec, parts_.clock, view_sources()),
      beat_(parts_.clock) {}

JobView::Sources WebServices::view_sources() {
  return {.workers = [this] { return workers(); },
          .serves_store = parts_.serves_store,
          .changed =
              [this] {
                if (pages_) pages_->changed();
              },
          .goodput = parts_.goodput,
          .report = parts_.report};
}

JobPages::Parts WebServices::page_parts() {
  return {.loop = parts_.loop,
          .clock = parts_.clock,
          .view = view_,
          .workers = [this] { return workers(); },
          .vitals = [this] { return vitals(); },
          .metrics = [this](bool open, auto then) { metrics(open, std::move(then)); },
          .system =
              [this](auto then) {
                parts_.metrics->machine().look(
                    [then = std::move(then)](const system::MachineSample& sample) {
                      then(machine_json(sample));
                    });
              }};
}

Status WebServices::open() {
  health_check_ = open_health_check(parts_.loop, parts_.clock, workers::own_environment(),
                                    [this] { return vitals(); });
  if (!parts_.spec.http) return {};
  auto pages = JobPages::open(page_parts(), *parts_.spec.http);
  if (!pages) return std::unexpected(pages.error());
  pages_ = std::move(*pages);
  // Only here, where a page may be asked for: from the first cursor on each sample of a worker is a
  // series as well.
  parts_.metrics->host().take_samples();
  return {};
}

std::string WebServices::address() const {
  if (!pages_) return {};
  return fmt::format("http://{}/", net::format_endpoint(pages_->at().host, pages_->at().port));
}

const std::vector<workers::Worker>* WebServices::workers() const {
  const auto* group = parts_.group();
  return group == nullptr ? nullptr : &group->workers();
}

Vitals WebServices::vitals() const {
  return {beat_.since(), parts_.overdue_timer(), view_.phase_name()};
}

std::vector<telemetry::Attribute> WebServices::resource() const {
  return {{"service.name", std::string("elastrun.agent")},
          {"elastrun.run.id", parts_.spec.run_id},
          {"elastrun.role", parts_.spec.role},
          {"host.name", host_name()},
          {"process.pid", std::int64_t{::getpid()}}};
}

void WebServices::metrics(bool open, std::function<void(std::string)> then) {
  const auto& page = open ? open_page_ : page_;
  // Several scrapers must not cost a collection each.
  if (page.is_fresh(parts_.clock.now())) return then(page.text());
  parts_.metrics->machine().look([this, open, then = std::move(then),
                                  alive = lifetime_.token()](const system::MachineSample& sample) {
    if (alive) then(render(open, sample));
  });
}

/// Of those who have waited for one look at the machine, the first one's serves all.
const std::string& WebServices::render(bool open, const system::MachineSample& sample) {
  auto& page = open ? open_page_ : page_;
  const auto begun = parts_.clock.now();
  if (page.is_fresh(begun)) return page.text();
  auto& metrics = *parts_.metrics;
  auto snapshot = metrics.host().registry().collect();
  std::ranges::move(metrics.machine().points_of(sample), std::back_inserter(snapshot.points));
  using exporter::PageForm;
  auto text = exporter::page_of(snapshot, open ? PageForm::OpenMetrics : PageForm::Prometheus,
                                {.resource = resource(), .tells_refused = true});
  page.put(std::move(text), begun, parts_.clock.now());
  return page.text();
}

}  // namespace elastrun::agent
