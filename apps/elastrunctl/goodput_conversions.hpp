// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput_answer.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace elastrun::ctl {

/// What `goodput convert` writes, in three parts; record by record, so that a journal may be of any
/// length. Pure.
class GoodputConversion {
 public:
  virtual ~GoodputConversion() = default;
  virtual std::string begin() { return {}; }
  /// A record of a journal that `input` has just taken.
  virtual std::string record(telemetry::Record record, const GoodputInput& input) = 0;
  /// An entry of a log, as GoodputReader::on_entry gets it.
  virtual std::string entry(const json::object&, double, const GoodputInput&) { return {}; }
  /// What the account adds once all was read.
  virtual std::string end(const GoodputInput& input, const GoodputAnswer& answer) = 0;
};

/// One of kConversions.
std::unique_ptr<GoodputConversion> conversion_to(std::string_view form);

}  // namespace elastrun::ctl
