// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/session/handler.hpp"
#include "spec/job_spec.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace elastrun::agent {

/// Where the output of the workers goes, and what of it the console shows: torchelastic's
/// LogsSpecs.
struct LogsSpecs {
  std::string log_dir{};  // empty: a temporary one, kept only if it holds something of use
  spec::StdMap redirects{}, tee{};
  std::vector<int> local_ranks_filter{};  // empty: all
  std::string prefix_template{};          // of tee'd lines; empty: [ROLELOCAL_RANK]:
};

/// What the workers of one node are, and how the node finds the others: torchelastic's WorkerSpec,
/// with its defaults. Only entrypoint and rdzv_handler have none.
struct WorkerSpec {
  std::string role = "default";
  int local_world_size = 1;
  std::string entrypoint{};         // a program: a path, or a name that is looked up in PATH
  std::vector<std::string> args{};  // `$local_rank` in them is filled in
  rendezvous::Handler rdzv_handler{};
  int max_restarts = 3;
  /// Deaths are seen at once; this is how often a handler of your own is asked for waiting nodes,
  /// and twice the time in which failed workers may still say why.
  Duration monitor_interval = std::chrono::milliseconds(100);
  /// Fixes where the workers of this node meet, over what the rounds announce and what a handler of
  /// your own says. At another port than theirs, you serve the store (with etcd, worker 0 does).
  std::string master_addr{};
  std::uint16_t master_port = 0;
  std::string local_addr{};                  // by which other nodes reach this one
  std::string event_log_handler = "null";    // as telemetry::events::register_handler
  std::map<std::string, std::string> env{};  // added to the workers' environment
  std::vector<int> inherited_fds{};  // descriptors of ours that the workers have, too, above 2
  LogsSpecs logs{};
  std::optional<std::vector<std::string>> duplicate_stdout_filters{}, duplicate_stderr_filters{};
  spec::NumaBinding numa_binding = spec::NumaBinding::None;
  bool virtual_local_rank = false;
  Duration exit_barrier_timeout = std::chrono::seconds(300);
  Duration shutdown_timeout = std::chrono::seconds(30);
  std::vector<std::string> signals_to_handle = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"};
  spec::JobSpec options{};  // all else that a command line could say: --http, --metrics, ...
};

/// Has the job meet by a back end of these parameters, its workers at `master` as far as that is
/// fixed. Fails with Usage.
Status meet_by(const rendezvous::RendezvousParameters& parameters,
               const rendezvous::BootstrapStoreInfo& master, spec::JobSpec& job);

/// The same job as a command line would give it. Fails with Usage and a sentence that names the
/// field.
Result<spec::JobSpec> job_of(const WorkerSpec& spec);

}  // namespace elastrun::agent
