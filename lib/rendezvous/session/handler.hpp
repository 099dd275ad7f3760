// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::store {
class BlockingStore;
}

/// torchelastic's rendezvous interface (torchrun-parity 6.1-6.3), for launchers that bring their
/// own way of finding the other nodes.
namespace elastrun::rendezvous {

struct BootstrapStoreInfo {
  std::string master_addr;
  std::uint16_t master_port = 0;
};

/// One complete round, as one node sees it.
struct RendezvousInfo {
  int rank = 0;  // of this node
  int world_size = 1;
  /// For this round alone (see BlockingStore::within). The agents tell each other through it how
  /// many workers they have, where the workers' store is, and when they are done. A world of
  /// several nodes needs one.
  std::shared_ptr<store::BlockingStore> store{};
  /// Where the workers meet. Left out, the agent with rank 0 serves their store and says where.
  std::optional<BootstrapStoreInfo> bootstrap_store_info{};
};

/// How the nodes of a job come together. The agent calls it on a separate thread, one call at a
/// time, so every call may wait as long as it must; while the agent is told to end it does not wait
/// for a call to return. An exception counts as an error of code Rendezvous. On that thread the
/// launcher's log (core/log.hpp) must not be used, which belongs to the agent's: what is to be told
/// goes into the error that a call returns, or to std::clog.
class RendezvousHandler {
 public:
  virtual ~RendezvousHandler() = default;
  /// The name under which it is registered, and which stands in events.
  virtual std::string get_backend() const = 0;
  virtual std::string get_run_id() const = 0;
  /// Waits until the next round is complete. Errors by code: Closed and Timeout fail the job,
  /// Cancelled ends it well on this node (torchelastic's RendezvousGracefulExitError), any other
  /// means that the rendezvous is lost.
  virtual Result<RendezvousInfo> next_rendezvous() = 0;
  /// With bootstrap_store_info: whether a server listens there already (true), or worker 0 is to
  /// start it (false).
  virtual bool use_agent_store() const { return false; }
  virtual bool is_closed() { return false; }
  virtual Status set_closed() { return {}; }
  /// Nodes that wait to join the present round: if there are any, the workers are restarted for
  /// them, which costs no restart of the budget. Asked in every monitor interval.
  virtual int num_nodes_waiting() { return 0; }
  /// The job is over on this node. Not called when a signal has ended it.
  virtual bool shutdown() { return true; }
};

/// What a handler is made from: the --rdzv-* options.
struct RendezvousParameters {
  std::string backend{};
  std::string endpoint{};
  std::string run_id = "none";
  int min_nodes = 1, max_nodes = 1;
  std::string local_addr{};
  int node_rank = 0;                          // static only
  std::map<std::string, std::string> conf{};  // --rdzv-conf

  /// Fails with Usage and torchrun's sentences.
  Status check() const;
  std::string get(const std::string& key, std::string otherwise = {}) const;
  Result<std::optional<bool>> get_as_bool(const std::string& key) const;
  Result<std::optional<std::int64_t>> get_as_int(const std::string& key) const;
};

/// A back end of ours, by its parameters: the agent runs it on its own loop, without a thread.
/// Its next_rendezvous fails with Usage outside an agent.
class BuiltInHandler final : public RendezvousHandler {
 public:
  explicit BuiltInHandler(RendezvousParameters parameters) : parameters_(std::move(parameters)) {}
  const RendezvousParameters& parameters() const { return parameters_; }
  std::string get_backend() const override { return parameters_.backend; }
  std::string get_run_id() const override { return parameters_.run_id; }
  Result<RendezvousInfo> next_rendezvous() override;
  bool use_agent_store() const override { return true; }

 private:
  RendezvousParameters parameters_;
};

using Handler = std::shared_ptr<RendezvousHandler>;
using HandlerCreator = std::function<Result<Handler>(const RendezvousParameters&)>;

/// Makes a back end known, for --rdzv-backend NAME and get_rendezvous_handler. Fails with Usage if
/// the name is empty or taken: c10d, static, etcd, etcd-v2 and file are from the beginning.
Status register_rendezvous_handler(const std::string& backend, HandlerCreator creator);
/// A new handler of the back end that the parameters name. Fails with Usage for one that is not
/// registered, and with Internal if the creator gives another one's.
Result<Handler> get_rendezvous_handler(const RendezvousParameters& parameters);
bool is_built_in(std::string_view backend);
/// Names that a launcher has registered, without the built-in ones.
std::vector<std::string> registered_backends();

}  // namespace elastrun::rendezvous
