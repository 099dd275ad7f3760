// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/blocking_calls.hpp"
#include "support/logged_text.hpp"
#include "support/scratch.hpp"

#include <boost/asio/io_context.hpp>
#include <string>

namespace elastrun::test {

/// A directory for files that a thread writes, which goes with this object, and what the log has
/// said meanwhile.
struct LoggedPlace : Scratch {
  std::string content(const std::string& name) const { return test::content(*this / name); }

  boost::asio::io_context loop;
  files::BlockingCalls calls{loop.get_executor()};
  LoggedText log;
  std::string& said = log.text;
};

}  // namespace elastrun::test
