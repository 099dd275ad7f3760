// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace elastrun::test {

/// A directory of one test, removed with all that is in it when the test ends.
struct Scratch {
  Scratch() {
    auto pattern = (std::filesystem::temp_directory_path() / "elastrun-test-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string operator/(const std::string& name) const { return path + "/" + name; }
  /// Writes a file, with the directories that its name asks for.
  void add(const std::string& name, const std::string& text = "") const {
    const std::filesystem::path file = *this / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string path;
};

/// All bytes of a file, none if it cannot be read.
inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace elastrun::test
