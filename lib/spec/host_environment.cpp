// SPDX-License-Identifier: Apache-2.0
#include "spec/host_environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sched.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace elastrun::spec {

std::optional<std::string> HostEnvironment::variable(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> HostEnvironment::pet_variables() const {
  std::vector<std::string> names;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view entry(*one);
    if (entry.starts_with("PET_")) names.emplace_back(entry.substr(0, entry.find('=')));
  }
  // environ(7) is in any order; the warnings come in one.
  std::ranges::sort(names);
  return names;
}

bool HostEnvironment::exists(const std::string& path) const {
  return ::access(path.c_str(), F_OK) == 0;
}

bool HostEnvironment::is_executable(const std::string& path) const {
  struct stat facts {};
  // A folder has the bit for searching it, by which access(2) alone would take it for a program.
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

int HostEnvironment::count_cpus() const {
  // sched_getaffinity(2) fails with EINVAL if the mask is smaller than the kernel's.
  for (int bits = 1024; bits <= (1 << 20); bits *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(bits));
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(bits));
    const int count = ::sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  // Only where the mask cannot be read: it counts the CPUs of the machine, also those that a batch
  // system has given to others.
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string HostEnvironment::own_program() const {
  std::error_code unknown;
  // Not by argv[0], which the caller chooses.
  return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
}

}  // namespace elastrun::spec
