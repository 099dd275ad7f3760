// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/seal.hpp"
#include "rendezvous/coordinator/job.hpp"
#include "rendezvous/discovery/locator.hpp"

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

namespace elastrun::rendezvous {

/// The coordinator of an endpoint that the user has given (`c10d`, `static`).
struct FixedLocatorSettings {
  net::Endpoint endpoint;
  /// Nothing: this process hosts if the endpoint is an address of this machine and its port is
  /// free; compared by interface addresses, never by names.
  std::optional<bool> is_host;
  CoordinatorSettings coordinator;
};

std::unique_ptr<Locator> make_fixed_locator(boost::asio::io_context& loop, Clock& clock,
                                            std::shared_ptr<const net::Sealer> sealer,
                                            FixedLocatorSettings settings);

}  // namespace elastrun::rendezvous
