// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace elastrun::test {

/// A directory that is removed at the end of the test, in which files stand for those of /proc or
/// /sys.
class FakeFiles {
 public:
  FakeFiles() {
    std::string name = std::filesystem::temp_directory_path() / "elastrun-files-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  FakeFiles(const FakeFiles&) = delete;
  FakeFiles& operator=(const FakeFiles&) = delete;
  ~FakeFiles() { std::filesystem::remove_all(root_); }

  std::string root() const { return root_; }
  void add(const std::string& path, const std::string& text = "") const {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

 private:
  std::filesystem::path root_;
};

}  // namespace elastrun::test
