// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "net/frame.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace elastrun::rendezvous {

/// What MUNGE can do for us: munge(7). A forwarding fake breaks it in tests. Calls wait for munged,
/// which is on this machine, and may come from any thread.
class Munge {
 public:
  virtual ~Munge() = default;
  /// A credential that only processes of `reader` can open, where the same MUNGE key is in use.
  virtual Result<std::string> encode(std::string_view payload, uid_t reader) const = 0;
  struct Opened {
    std::string payload;
    uid_t writer = 0;
  };
  /// Fails with Rendezvous for one that is forged, outdated, opened before, or another reader's;
  /// with Io if munged cannot be asked.
  virtual Result<Opened> decode(const std::string& credential) const = 0;
};
/// By libmunge.so.2, loaded now, and tried: fails with Io where it is not installed or no munged
/// answers.
Result<std::shared_ptr<const Munge>> load_munge();

/// The exchange of keys by credentials: elastrun-protocol(7) has its bytes and what it withstands.
/// Processes of one user on machines of one MUNGE realm know each other.
std::shared_ptr<net::KeyExchange> make_munge_exchange(boost::asio::io_context& loop,
                                                      std::shared_ptr<const Munge> munge,
                                                      bool required);

}  // namespace elastrun::rendezvous
