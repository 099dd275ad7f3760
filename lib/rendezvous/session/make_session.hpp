// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/membership/join_phase.hpp"
#include "rendezvous/session/session.hpp"
#include "spec/rendezvous_config.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/types.h>

namespace elastrun::rendezvous {

/// How this node is to meet the others, as the job's options say, checked and merged.
struct SessionSettings {
  std::string backend{spec::backend::kC10d};  // static, c10d, etcd, etcd-v2, file
  std::string endpoint;                       // as --rdzv-endpoint, or MASTER_ADDR:MASTER_PORT
  std::string run_id = "none";
  std::string start;              // which start of the job, as the scheduler tells; may be empty
  Rules rules;                    // rules_of() the job
  int node_rank = 0;              // static only
  Duration grace{};               // Node::grace, alike on all nodes
  std::string local_addr;         // --local-addr
  spec::RendezvousConfig config;  // --rdzv-conf
  std::string secret;             // ELASTRUN_SECRET; secret_file of `config` wins
  /// Without a secret: by MUNGE, if it is installed. Under Slurm its nodes have it.
  bool try_munge = false;
  pid_t guardian = 0;  // of this process; 0: there is none
};

/// A session for jobs of several nodes (and for single nodes that are to meet others at an
/// endpoint, or wait as spares). Nothing is sent before `open`. Fails with Usage for a bad
/// endpoint, an unreadable secret or an unknown back end; warns in the log where a job without a
/// secret can be reached from other machines.
Result<std::unique_ptr<Session>> make_session(boost::asio::io_context& loop, Clock& clock,
                                              const SessionSettings& settings);

}  // namespace elastrun::rendezvous
