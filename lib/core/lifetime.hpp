// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>
#include <memory>

namespace elastrun {

/// Run once what was asked for is done; `Answer` gets what has come of it.
using Then = std::function<void()>;
template <class T>
using Answer = std::function<void(Result<T>)>;

/// A member of an object that hands out callbacks which may run after it has gone: Asio's
/// completions that are queued already, answers of another thread. Each takes a token along and
/// asks it first:
///
///     boost::asio::post(loop, [this, alive = lifetime_.token()] {
///       if (alive) go_on();
///     });
class Lifetime {
 public:
  class Token {
   public:
    explicit Token(std::weak_ptr<const void> object) : object_(std::move(object)) {}
    explicit operator bool() const { return !object_.expired(); }

   private:
    std::weak_ptr<const void> object_;
  };

  Lifetime() = default;
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  Token token() const { return Token(object_); }
  /// From now on the object counts as gone: the first line of a destructor whose other members may
  /// still call back.
  void end() { object_.reset(); }

 private:
  std::shared_ptr<const void> object_ = std::make_shared<char>();
};

}  // namespace elastrun
