// SPDX-License-Identifier: Apache-2.0
#include "spec/surroundings.hpp"

#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sched.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::spec {
namespace {

std::optional<std::string> read_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<std::string> read_whole_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::unexpected(errno_error(Code::Usage, path, errno));
  std::string text;
  std::array<char, 16384> piece{};
  for (;;) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::unexpected(errno_error(Code::Usage, path, errno));
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
}

bool path_exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

bool path_is_executable(const std::string& path) {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
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
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

int count_entries(const std::filesystem::path& folder, bool (*wanted)(const std::string&)) {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (wanted(at->path().filename().string())) ++count;
  }
  return count;
}

bool is_nvidia_device(const std::string& name) {
  return name.size() > 6 && name.starts_with("nvidia") &&
         std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int count_gpus() {
  // In a container /proc may show all boards of the host, /dev only those that were lent.
  const int boards =
      count_entries("/proc/driver/nvidia/gpus", [](const std::string&) { return true; });
  const int nodes = count_entries("/dev", is_nvidia_device);
  const int present = boards > 0 && nodes > 0 ? std::min(boards, nodes) : std::max(boards, nodes);
  return count_visible_devices(present, read_variable("CUDA_VISIBLE_DEVICES"));
}

int count_xpus() {
  return 0;
}

}  // namespace

int count_visible_devices(int present, const std::optional<std::string>& visible) {
  if (!visible) return present;
  std::set<std::string> seen;
  for (const auto& part : split(*visible, ',')) {
    std::string name(trim(part));
    const bool is_uuid = name.starts_with("GPU-") || name.starts_with("MIG-");
    if (!is_uuid) {
      const auto index = parse_int(name);
      if (!index || *index < 0 || *index >= present) break;
      name = std::to_string(*index);
    }
    if (!seen.insert(name).second) return 0;
  }
  return static_cast<int>(std::min(seen.size(), static_cast<std::size_t>(std::max(present, 0))));
}

Surroundings system_surroundings() {
  return {read_variable,
          read_whole_file,
          path_exists,
          path_is_executable,
          count_cpus,
          count_gpus,
          count_xpus,
          random_uuid,
          {},
          {},
          {}};
}

}  // namespace elastrun::spec
