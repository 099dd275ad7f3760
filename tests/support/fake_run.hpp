// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/run_context.hpp"
#include "process/posix_launcher.hpp"
#include "support/fake_clock.hpp"
#include "support/fake_launcher.hpp"
#include "support/fake_processes.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace elastrun::test {

/// The ground of a run that exists only in a test, but may start programs.
struct FakeGround {
  explicit FakeGround(bool starts_programs)
      : programs(starts_programs ? std::make_unique<process::PosixLauncher>(io, time) : nullptr) {}

  boost::asio::io_context io;
  FakeClock time;
  FakeLauncher started{time};
  std::unique_ptr<process::PosixLauncher> programs;
  FakeProcesses table;
  spec::JobSpec job;
  guardian::Agent nobody;
  logs::Console out{io.get_executor()};
  files::Lanes threads{io.get_executor()};
};

/// A run of which a test has all around the part that it tries.
struct FakeRun : FakeGround, agent::RunContext {
  explicit FakeRun(spec::JobSpec its_job = {}, bool starts_programs = false,
                   std::vector<std::string> its_environment = {})
      : FakeGround(starts_programs),
        RunContext({io, time, job, nobody, launcher_of(*this), table, out, threads,
                    std::move(its_environment)}) {
    job = std::move(its_job);
  }
  void post(agent::Fact fact) override { facts.push_back(std::move(fact)); }
  const workers::Worker* worker_of(pid_t process) const override {
    return worker.pid == process ? &worker : nullptr;
  }
  Result<std::vector<workers::WorkerPlan>> plan(const rendezvous::Round&) override {
    return std::vector<workers::WorkerPlan>();
  }
  void catch_up() override { ++catches_up; }
  std::uint64_t written() const override { return bytes; }
  TimePoint activity() const override { return active; }
  void save_takes(Duration duration) override { saves.push_back(duration); }

  static process::Launcher& launcher_of(FakeGround& ground) {
    if (ground.programs) return *ground.programs;
    return ground.started;
  }

  std::vector<agent::Fact> facts;
  workers::Worker worker;  // the only one
  std::uint64_t bytes = 0;
  TimePoint active = TimePoint::min();
  std::vector<Duration> saves;
  int catches_up = 0;
};

/// Keeps what is reported.
struct FakeSession final : rendezvous::Session {
  void open(OnPush) override {}
  void join(rendezvous::Node) override {}
  void report(rendezvous::Report report) override { reports.push_back(std::move(report)); }
  void close(std::function<void()> on_closed) override { on_closed(); }
  std::string backend() const override { return "fake"; }
  std::string run_id() const override { return "R"; }
  std::vector<rendezvous::Report> reports;
};

}  // namespace elastrun::test
