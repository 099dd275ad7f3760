// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "rendezvous/election/election.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace elastrun::rendezvous {

/// What the file of a lease says. No value: it is free, but epochs go on from here.
struct LeaseRecord {
  std::string value;
  std::int64_t epoch = 0;
  std::int64_t heartbeat = 0;
  double renewed = 0;  // wall clock of the leader, for people
  std::string record{};
  bool operator==(const LeaseRecord&) const = default;
};

/// The file of a lease: two slots of one size, written in turn, in place, each with a version and a
/// checksum. A reader that holds no lock takes the newer one that is whole: one of them always is,
/// also when a writer has died within a write. And a file system without any space left still takes
/// what is written over blocks that are there, as long as it does not copy on write.
///
/// Each slot is one line of JSON, so people can read them. Calls wait for the file system.
class LeaseFile {
 public:
  explicit LeaseFile(std::string path) : path_(std::move(path)) {}

  /// A file that is not there or empty is a record without a value. Fails with Usage if it is
  /// something else.
  Result<LeaseRecord> read() const;
  /// The same, as it is at the file server, under the lock of the writers.
  Result<LeaseRecord> read_locked();
  /// After `read_locked`, under the same lock. Fails with Io.
  Status write(const LeaseRecord& record);
  /// Whether the latest `write` has failed for want of space.
  bool is_full() const { return full_; }
  const std::string& path() const { return path_; }

 private:
  Status failed(int number);
  Status write_in_place(const std::string& slot);
  Status replace(const std::string& slot);

  std::string path_;
  std::int64_t version_ = 0;   // of what was read or written last
  std::size_t slot_size_ = 0;  // of the file then; 0: there are none yet
  bool full_ = false;
};

/// An entry in a file that all nodes share. Its leader counts a number in it up while it lives; who
/// sees the number stand still for a TTL and a half, by its own clock, may take it. So clocks of
/// machines are never compared. Changes are made under a lock on a second file (fcntl(2), which NFS
/// passes on to its server), and in place (LeaseFile): a full disk ends no lease.
/// `file` is the entry; its directory must exist and be writable. A record in an entry that is
/// older than ten TTLs and `record_life`, by the clock of the file system, is forgotten.
std::unique_ptr<LeaseEntry> make_file_entry(std::string file, Duration ttl, Duration record_life);

}  // namespace elastrun::rendezvous
