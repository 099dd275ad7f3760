// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "goodput_files.hpp"
#include "subcommands.hpp"

#include <optional>
#include <string>

namespace elastrun::ctl {

/// The account of one job, whichever kind of file it came from.
struct GoodputAnswer {
  std::string job;   // run id
  std::string name;  // what people call it
  goodput::Ledger::Summary summary;
  std::optional<goodput::MeasuredBooks> measured;  // of a log of ml-goodput-measurement
  std::optional<goodput::JobGoodput> compatible;   // if asked for
};

/// Fails with Usage if no job starts in what was read, or `compatible` has nothing to go by.
Result<GoodputAnswer> answer_of(const GoodputInput& input, bool compatible);

/// `report --json`, without what --compatible adds.
json::object account_json(const GoodputInput& input, const GoodputAnswer& answer);

/// "job "night", submitted 2 times, 31412 records (left out: 1 given twice)", for people.
std::string job_line(const GoodputInput& input, const GoodputAnswer& answer);
/// "2 lines that are not records, 1 given twice": what of the input is not in the books; may be
/// empty.
std::string left_out(const GoodputInput& input, const GoodputAnswer& answer);

}  // namespace elastrun::ctl
