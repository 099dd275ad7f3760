// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/log.hpp"
#include "files/blocking_calls.hpp"

#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace elastrun::test {

/// A directory for files that a thread writes, which goes with this object, and what the log has
/// said meanwhile.
struct LoggedPlace {
  LoggedPlace() {
    std::string pattern = (std::filesystem::temp_directory_path() / "files_test_XXXXXX").string();
    path = ::mkdtemp(pattern.data());
    log::set_writer(
        [](void* text, std::string_view line) { static_cast<std::string*>(text)->append(line); },
        &said);
  }
  ~LoggedPlace() {
    log::set_writer(nullptr, nullptr);
    std::filesystem::remove_all(path);
  }
  LoggedPlace(const LoggedPlace&) = delete;
  LoggedPlace& operator=(const LoggedPlace&) = delete;

  std::string content(const std::string& name) const {
    std::ifstream in(path + "/" + name, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  boost::asio::io_context loop;
  std::string path, said;
  files::BlockingCalls calls{loop.get_executor()};
};

}  // namespace elastrun::test
