// SPDX-License-Identifier: Apache-2.0
// The whole of elastrun, with every option, and a back end more:
//   my_elastrun --rdzv-backend one-node --nproc-per-node 2 train.py
#include <elastrun/elastrun/launch.hpp>
#include <elastrun/rendezvous/session/handler.hpp>

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

int main(int argc, char** argv) {
  const auto registered = rendezvous::register_rendezvous_handler(
      "one-node", [](const auto& parameters) { return std::make_shared<OneNode>(parameters); });
  return registered ? launch(argc, argv) : 2;
}
