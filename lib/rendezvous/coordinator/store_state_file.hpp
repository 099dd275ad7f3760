// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"
#include "files/blocking_calls.hpp"
#include "rendezvous/coordinator/coordinator.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// The worlds of a coordinator that stands alone, in a file: where it is begun again, and those who
/// could tell it come late or never, it knows what may be at work. Each is written before it is
/// given out, on a separate thread; a slow disk delays a job by at most that time. JSON, in
/// elastrun-protocol(7).
class StoreStateFile final : public CoordinatorOwner {
 public:
  /// A file that is not there or is empty knows of none. Fails with Usage if it is something else,
  /// with Io if it cannot be read.
  static Result<std::unique_ptr<StoreStateFile>> open(boost::asio::io_context& loop, Clock& clock,
                                                      std::string path);

  /// Lets the coordinator of these settings know, and record. To be destroyed after it.
  void attach(CoordinatorSettings& settings) {
    settings.known_worlds = worlds_;
    settings.owner = this;
  }

  bool records_worlds() const override { return true; }
  void record_world(const std::string& run_id, const WorldRecord& world, Then recorded) override {
    // Without names and address, which the file has not: there may be many thousands of jobs.
    worlds_[run_id] = {world.id, world.nodes, "", 0, world.at_work};
    write(std::move(recorded));
  }
  void job_over(const std::string& run_id) override {
    if (worlds_.erase(run_id) > 0) write({});
  }

 private:
  struct Write {
    Then written;  // none: it is waited for no longer
    std::unique_ptr<Alarm> limit;
  };
  StoreStateFile(boost::asio::io_context& loop, Clock& clock, std::string path)
      : path_(std::move(path)), clock_(clock), calls_(loop.get_executor()) {}
  Status read();
  void write(Then written);
  void warn(const Error& error);

  const std::string path_;
  Clock& clock_;
  std::map<std::string, WorldRecord> worlds_;  // by run id
  std::map<std::uint64_t, Write> writes_;
  std::uint64_t last_write_ = 0;
  bool warned_ = false;
  files::BlockingCalls calls_;  // last: uses the above
};

}  // namespace elastrun::rendezvous
