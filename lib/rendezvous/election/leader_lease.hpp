// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/lifetime.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace elastrun::rendezvous {

/// No honest count gets that far, and there must be room for higher ones.
constexpr std::int64_t kHighestEpoch = std::int64_t{1} << 60;

/// The lease of a job's leader in etcd or a shared file: all agents can read it, and at most one of
/// them holds it at a time, for as long as it renews it. Answers come on the loop, never inside a
/// call; each operation is asked for once at a time. Errors are transient unless their code is
/// Usage.
class LeaderLease {
 public:
  struct Leader {
    std::string value;
    std::int64_t epoch = 0;  // higher for each new leader, as long as the place forgets nothing
    std::string record{};    // the latest one of any leader; only in answers to `claim`
  };
  virtual ~LeaderLease() = default;

  /// Who holds it.
  virtual void read(Answer<std::optional<Leader>> answer) = 0;
  /// Takes it if it is free: answers with the leader, which is us if it has our value. The
  /// value must be unlike all others.
  virtual void claim(const std::string& value, Answer<Leader> answer) = 0;
  /// Still ours? If so, for another TTL, counted from the time of this call.
  virtual void renew(Answer<bool> answer) = 0;
  /// Keeps a record beside the entry, if that is still ours (the answer). Records outlive their
  /// leader, so that the next leader finds them, but not for ever.
  virtual void record(const std::string& record, Answer<bool> answer) = 0;
  /// Gives it back, if it is ours, and with `forget` the record too; `done` runs also if that
  /// failed (it lapses by itself then).
  virtual void release(bool forget, Then done) = 0;

  /// How long it stays ours without being renewed.
  virtual Duration ttl() const = 0;
  /// This machine's address on its way there; unspecified if that is not known.
  virtual boost::asio::ip::address own_address() const { return {}; }
};

/// The entry of a lease where it is kept, and what this agent knows of it. The operations are those
/// of LeaderLease, but wait for their answers, so one thread makes them all (make_elected.cpp).
class LeaseEntry {
 public:
  using Leader = LeaderLease::Leader;
  virtual ~LeaseEntry() = default;
  virtual Result<std::optional<Leader>> read() = 0;
  virtual Result<Leader> claim(const std::string& value) = 0;
  virtual Result<bool> renew() = 0;
  virtual Result<bool> record(const std::string& record) = 0;
  virtual void release(bool forget) = 0;

  /// Nothing has been asked for a while.
  virtual void rest() {}
  /// Whether the latest change has failed for want of space.
  virtual bool is_full() const { return false; }
  virtual boost::asio::ip::address own_address() const { return {}; }
};

}  // namespace elastrun::rendezvous
