// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace elastrun::test {

/// The program that plays difficult workers (its steps: tests/helpers/stub_worker.cpp). It lies
/// beside the test program that asks.
inline std::string stub_worker() {
  static const std::string path =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "helpers" / "stub_worker";
  return path;
}

}  // namespace elastrun::test
