// SPDX-License-Identifier: Apache-2.0
#include "core/temporary_places.hpp"

#include <cstdlib>
#include <filesystem>

namespace elastrun {
namespace {

std::string absolute(const std::string& path) {
  std::error_code error;  // where the current directory is gone, a relative path leads nowhere
  auto full = std::filesystem::absolute(path, error).lexically_normal().string();
  while (full.size() > 1 && full.back() == '/') full.pop_back();
  return error ? path : full;
}

}  // namespace

std::vector<std::string> temporary_places(const std::string& memory) {
  std::vector<std::string> places;
  for (const char* name : {"TMPDIR", "TEMP", "TMP"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') places.push_back(absolute(value));
  }
  if (!memory.empty()) places.push_back(memory);
  for (const char* path : {"/tmp", "/var/tmp", "/usr/tmp"}) places.emplace_back(path);
  places.push_back(absolute("."));
  return places;
}

}  // namespace elastrun
