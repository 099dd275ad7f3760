// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "files/blocking_calls.hpp"
#include "support/logged_text.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace elastrun::test {

/// A directory for files that a thread writes, which goes with this object, and what the log has
/// said meanwhile.
struct LoggedPlace {
  LoggedPlace() {
    std::string pattern = (std::filesystem::temp_directory_path() / "files_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~LoggedPlace() { std::filesystem::remove_all(path); }
  LoggedPlace(const LoggedPlace&) = delete;
  LoggedPlace& operator=(const LoggedPlace&) = delete;

  std::string content(const std::string& name) const {
    std::ifstream in(path + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  boost::asio::io_context loop;
  std::string path;
  files::BlockingCalls calls{loop.get_executor()};
  LoggedText log;
  std::string& said = log.text;
};

}  // namespace elastrun::test
