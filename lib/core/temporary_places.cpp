// SPDX-License-Identifier: Apache-2.0
#include "core/temporary_places.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

namespace elastrun {
namespace {

constexpr std::array kVariables{"TMPDIR", "TEMP", "TMP"};

std::string absolute(const std::string& path) {
  std::error_code error;  // where the current directory is gone, a relative path leads nowhere
  auto full = std::filesystem::absolute(path, error).lexically_normal().string();
  while (full.size() > 1 && full.back() == '/') full.pop_back();
  return error ? path : full;
}

}  // namespace

bool names_temporary_place() {
  return std::ranges::any_of(kVariables, [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  });
}

std::vector<std::string> socket_places() {
  std::vector<std::string> places{"/tmp", "/dev/shm"};
  const char* given = std::getenv(kVariables.front());
  if (given != nullptr && *given != '\0') places.insert(places.begin(), absolute(given));
  return places;
}

std::vector<std::string> temporary_places(const std::string& memory) {
  std::vector<std::string> places;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') places.push_back(absolute(value));
  }
  if (!memory.empty()) places.push_back(memory);
  for (const char* path : {"/tmp", "/var/tmp", "/usr/tmp"}) places.emplace_back(path);
  places.push_back(absolute("."));
  return places;
}

}  // namespace elastrun
