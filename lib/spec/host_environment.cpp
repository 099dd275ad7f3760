// SPDX-License-Identifier: Apache-2.0
#include "spec/host_environment.hpp"

#include "core/read_file.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::spec {
namespace {

std::optional<std::string> read_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> read_pet_names() {
  std::vector<std::string> names;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) {
    const std::string_view entry(*one);
    if (entry.starts_with("PET_")) names.emplace_back(entry.substr(0, entry.find('=')));
  }
  // environ(7) is in any order; the warnings come in one.
  std::ranges::sort(names);
  return names;
}

bool path_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

bool path_is_executable(const std::string& path) {
  struct stat facts {};
  // A folder has the bit for searching it, by which access(2) alone would take it for a program.
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string read_first_line(const std::string& path) {
  // O_NONBLOCK: a FIFO of that name would wait for its writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // execve(2) reads so much of the first line (BINPRM_BUF_SIZE, since Linux 5.1).
  std::array<char, 256> start{};
  const auto size = file ? ::read(file.get(), start.data(), start.size()) : 0;
  std::string line(start.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  const auto end = line.find('\n');
  return end == std::string::npos ? line : line.substr(0, end + 1);
}

int count_cpus() {
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

std::string own_program() {
  std::array<char, PATH_MAX> path{};
  // Not by argv[0], which the caller chooses.
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

}  // namespace

HostEnvironment system_host_environment(std::function<int()> count_gpus,
                                        std::function<int()> count_xpus) {
  HostEnvironment around;
  around.variable = read_variable;
  around.pet_variables = read_pet_names;
  around.read_file = [](const std::string& path) { return read_file(path); };
  around.exists = path_exists;
  around.is_executable = path_is_executable;
  around.first_line = read_first_line;
  around.count_cpus = count_cpus;
  around.count_gpus = std::move(count_gpus);
  around.count_xpus = std::move(count_xpus);
  around.make_uuid = random_uuid;
  around.own_program = own_program;
  return around;
}

}  // namespace elastrun::spec
