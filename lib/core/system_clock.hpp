// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <memory>

namespace elastrun {

/// The kernel's clocks; alarms are timers of the given loop.
std::unique_ptr<Clock> make_system_clock(boost::asio::any_io_executor executor);

}  // namespace elastrun
