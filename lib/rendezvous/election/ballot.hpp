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

/// Beyond it nobody counts honestly, and there must be room for higher ones.
constexpr std::int64_t kHighestEpoch = std::int64_t{1} << 60;

/// One entry in a register that all agents of a job can read, and that at most one of them holds at
/// a time, for as long as it renews it. Answers come on the loop, never inside a call; each
/// operation is asked for once at a time. Errors are transient unless their code is Usage.
class Ballot {
 public:
  struct Holder {
    std::string value;
    std::int64_t epoch = 0;  // higher for each new holder, as long as the register forgets nothing
    std::string note{};      // the latest one of any holder; only in answers to `claim`
  };
  virtual ~Ballot() = default;

  /// Who holds it.
  virtual void read(std::function<void(Result<std::optional<Holder>>)> answer) = 0;
  /// Takes it, if nobody holds it: answers with the holder, which is us if it has our value. The
  /// value must be unlike all others.
  virtual void claim(const std::string& value, std::function<void(Result<Holder>)> answer) = 0;
  /// Still ours? If so, for another term, counted from the time of this call.
  virtual void renew(std::function<void(Result<bool>)> answer) = 0;
  /// Keeps a note beside the entry, if that is still ours (the answer). Notes outlive their holder,
  /// so that the next one finds them, but not for ever.
  virtual void record(const std::string& note, std::function<void(Result<bool>)> answer) = 0;
  /// Gives it back, if it is ours, and with `forget` the note too; `done` runs also if that failed
  /// (it lapses by itself then).
  virtual void release(bool forget, std::function<void()> done) = 0;
  /// Runs `changed` each time something may have changed, until `unwatch`.
  virtual void watch(std::function<void()> changed) = 0;
  virtual void unwatch() = 0;

  /// How long it stays ours without being renewed.
  virtual Duration term() const = 0;
  /// This machine's address on its way to the register; unspecified if that is not known.
  virtual boost::asio::ip::address own_address() const { return {}; }
};

}  // namespace elastrun::rendezvous
