// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workers/message.hpp"

#include <boost/json/object.hpp>

namespace elastrun::workers {

/// Packets of kind metric and samples. Both fail with Protocol and one sentence. Pure.
Result<Message> metric_from(const boost::json::object& object);
Result<Message> samples_from(const boost::json::object& object);

}  // namespace elastrun::workers
