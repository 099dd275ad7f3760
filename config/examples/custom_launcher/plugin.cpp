// SPDX-License-Identifier: Apache-2.0
// The whole of elastrun, with every option, a back end more, and its metrics for a handler:
//   my_elastrun --rdzv-backend one-node --nproc-per-node 2 train.py
#include <elastrun/elastrun/launch.hpp>
#include <elastrun/rendezvous/session/handler.hpp>
#include <elastrun/telemetry/metrics.hpp>
#include <iostream>

using namespace elastrun;

struct OneNode : rendezvous::RendezvousHandler {
  explicit OneNode(rendezvous::RendezvousParameters all) : parameters(std::move(all)) {}
  std::string get_backend() const override { return parameters.backend; }
  std::string get_run_id() const override { return parameters.run_id; }
  Result<rendezvous::RendezvousInfo> next_rendezvous() override {
    return rendezvous::RendezvousInfo{.rank = 0, .world_size = 1};
  }
  rendezvous::RendezvousParameters parameters;
};

struct Totals : telemetry::metrics::MetricHandler {
  void emit(const telemetry::metrics::MetricData& data) override {
    if (data.name.ends_with(".run_total")) std::cerr << "metric " << data.name << '\n';
  }
};

int main(int argc, char** argv) {
  const auto registered = rendezvous::register_rendezvous_handler(
      "one-node", [](const auto& parameters) { return std::make_shared<OneNode>(parameters); });
  telemetry::metrics::configure(std::make_shared<Totals>());
  return registered ? launch(argc, argv) : 2;
}
