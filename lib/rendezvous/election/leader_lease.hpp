// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"
#include "core/error.hpp"

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <functional>
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
  virtual void read(std::function<void(Result<std::optional<Leader>>)> answer) = 0;
  /// Takes it if it is free: answers with the leader, which is us if it has our value. The
  /// value must be unlike all others.
  virtual void claim(const std::string& value, std::function<void(Result<Leader>)> answer) = 0;
  /// Still ours? If so, for another TTL, counted from the time of this call.
  virtual void renew(std::function<void(Result<bool>)> answer) = 0;
  /// Keeps a record beside the entry, if that is still ours (the answer). Records outlive their
  /// leader, so that the next leader finds them, but not for ever.
  virtual void record(const std::string& record, std::function<void(Result<bool>)> answer) = 0;
  /// Gives it back, if it is ours, and with `forget` the record too; `done` runs also if that
  /// failed (it lapses by itself then).
  virtual void release(bool forget, std::function<void()> done) = 0;
  /// Runs `changed` each time something may have changed, until `unwatch`.
  virtual void watch(std::function<void()> changed) = 0;
  virtual void unwatch() = 0;

  /// How long it stays ours without being renewed.
  virtual Duration ttl() const = 0;
  /// This machine's address on its way there; unspecified if that is not known.
  virtual boost::asio::ip::address own_address() const { return {}; }
};

}  // namespace elastrun::rendezvous
