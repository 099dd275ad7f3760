// SPDX-License-Identifier: Apache-2.0
// A launcher of your own on the agent as a library: runs SCRIPT in two workers, with one restart.
#include <elastrun/launcher/elastic_agent.hpp>
#include <elastrun/telemetry/events.hpp>
#include <elastrun/telemetry/metrics.hpp>
#include <iostream>

using namespace elastrun;
using namespace elastrun::telemetry;

struct Printer : metrics::MetricHandler, events::EventHandler {
  void emit(const metrics::MetricData& data) override { say("metric", data.name); }
  void record(const events::Event& event) override { say("event", event.name); }
  void say(auto what, auto& name) { std::cerr << what << ' ' << name << '\n'; }
};

struct OneNode : rendezvous::RendezvousHandler {  // knows all of its nodes: there is one
  std::string get_backend() const override { return "one-node"; }
  std::string get_run_id() const override { return "my-run"; }
  Result<rendezvous::RendezvousInfo> next_rendezvous() override {
    std::cerr << "round " << ++rounds << '\n';
    return rendezvous::RendezvousInfo{.rank = 0, .world_size = 1};
  }
  int rounds = 0;
};

int main(int argc, char** argv) {
  auto guardian = guardian::split();  // first of all: so nothing is left, whichever is killed
  metrics::configure(std::make_shared<Printer>());
  events::register_handler("print", [](auto&) { return std::make_shared<Printer>(); });
  agent::WorkerSpec spec;
  spec.local_world_size = 2;
  spec.entrypoint = "python3";
  spec.args.assign(argv + 1, argv + argc);
  spec.rdzv_handler = std::make_shared<OneNode>();
  spec.max_restarts = 1;
  spec.event_log_handler = "print";
  const auto result = agent::LocalElasticAgent(spec, &guardian).run();
  if (!result) std::cerr << "cannot run: " << result.error().text << '\n';
  if (!result || result->is_failed()) return 1;
  std::cerr << "all " << result->return_values.size() << " workers succeeded\n";
}
