// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/loop/job_result.hpp"
#include "process/launcher.hpp"
#include "support/fake_clock.hpp"
#include "telemetry/route.hpp"
#include "workers/group.hpp"

#include <algorithm>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Vocabulary of the tests of what an agent tells the pipeline.
namespace elastrun::agent {

struct Heard final : telemetry::Sink {
  void consume(const telemetry::Record& record) override { records.push_back(record); }
  std::vector<telemetry::Record> records;
};

struct HeardRecords {
  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& record : heard->records) all.push_back(record.name);
    return all;
  }
  const telemetry::Record& last() const {
    REQUIRE_FALSE(heard->records.empty());
    return heard->records.back();
  }
};

/// A pipeline, its clock, and somebody who listens to one scope of it (`*`: to all).
struct Listening : HeardRecords {
  test::FakeClock clock;
  telemetry::Pipeline pipeline{clock};
  explicit Listening(const std::string& scope) { pipeline.route({scope, {}, {}}, heard); }
};

inline bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

template <class T>
T attribute(const telemetry::Record& record, std::string_view name) {
  CAPTURE(name);
  const auto* value = record.find(name);
  REQUIRE(value != nullptr);
  REQUIRE(std::holds_alternative<T>(*value));
  return std::get<T>(*value);
}

inline std::vector<workers::Worker> workers_of(const std::vector<process::ExitStatus>& statuses) {
  std::vector<workers::Worker> group;
  for (const auto& status : statuses) {
    auto& worker = group.emplace_back();
    worker.local_rank = static_cast<int>(group.size()) - 1;
    worker.rank = 4 + worker.local_rank;
    worker.pid = 100 + worker.local_rank;
    worker.exit = process::Exit{status, {}, WallTime(std::chrono::seconds(50)), 1 << 20};
  }
  return group;
}

inline workers::Failure failure_of(int local_rank, process::ExitStatus status) {
  workers::Failure failure;
  failure.local_rank = local_rank;
  failure.rank = 4 + local_rank;
  failure.pid = 100 + local_rank;
  failure.status = status;
  return failure;
}

}  // namespace elastrun::agent
