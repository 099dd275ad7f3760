// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "rendezvous/ballot.hpp"
#include "rendezvous/coordinator.hpp"
#include "rendezvous/election_entry.hpp"
#include "rendezvous/predecessor.hpp"

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// What an elected coordinator writes into the ballot about its worlds, and makes of what an
/// earlier one has written. The ballot must outlive it.
class WorldNotes {
 public:
  WorldNotes(boost::asio::io_context& loop, Clock& clock, Ballot& ballot);

  /// Notes a world; goes on trying while the ballot is out of reach. Then `noted` runs, or `lost`,
  /// if the entry is not ours any more. One at a time.
  void record(const WorldNote& world, std::function<void()> noted, std::function<void()> lost);
  /// The job is over: whoever comes back late shall know. Then `done` runs, whatever came of it.
  void conclude(const Done& verdict, std::function<void()> done);
  /// Tells the coordinator what may be at work until then, or is over, and finds out what is gone.
  void inherit(const std::string& note, Coordinator& coordinator, TimePoint until);
  /// Whether the note that was found, and that nothing has replaced, tells of a job that is over.
  bool tells_of_end() const { return tells_of_end_; }
  /// Whether somebody else has noted a world meanwhile.
  bool is_strange(const std::string& note) const;
  void stop();

 private:
  Clock& clock_;
  Ballot& ballot_;
  const std::string nonce_;
  const std::unique_ptr<Alarm> again_;
  Predecessor predecessor_;
  WorldNote latest_;
  bool tells_of_end_ = false;
};

}  // namespace elastrun::rendezvous
