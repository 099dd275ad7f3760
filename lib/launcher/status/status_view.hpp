// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/observer.hpp"
#include "logs/status_line.hpp"
#include "spec/job_spec.hpp"

namespace elastrun::agent {

/// Shows on the status line what the agent does.
class StatusView final : public Observer {
 public:
  StatusView(logs::StatusLine& line, const spec::JobSpec& job);

  void phase(Phase phase, TimePoint now) override;
  void progress(const std::string& text) override;
  void round_ready(const rendezvous::Round& round, Duration waited) override;
  void started(const rendezvous::Round& round, const std::vector<workers::Worker>& group,
               Duration took) override;
  void failed(const workers::Judgement& judgement) override;
  void restarting(const rendezvous::Restart& order) override;
  void role_restarting(const rendezvous::Restart& order) override { restarting(order); }
  void hang(const JobHang& hang) override;
  void worker_said(const workers::Worker& worker, const workers::Message& message) override;
  void ended(const JobResult& result, const std::vector<workers::Worker>* last_group) override;

 private:
  logs::StatusLine& line_;
  logs::StatusFacts status_;
  const bool several_nodes_;
  const std::string place_;  // where the nodes meet: "at node1:29400: "
  const int workers_;
  bool over_ = false;  // what workers said last may come later still
};

}  // namespace elastrun::agent
