// SPDX-License-Identifier: Apache-2.0
#include "launcher/node_check.hpp"

#include "core/unique_fd.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

// What a driver keeps for itself, and for a monitor beside the job.
constexpr std::uint64_t kKeptByDriver = 512ull << 20;

}  // namespace

std::string gpu_fault(const std::vector<system::GpuUse>& before,
                      const std::vector<system::GpuUse>& now, bool whole_node) {
  for (const auto& gpu : now) {
    const auto was = std::ranges::find(before, gpu.uuid, &system::GpuUse::uuid);
    if (was == before.end()) continue;
    if (gpu.xid_errors > was->xid_errors) {
      return fmt::format("GPU {} has had an Xid {}", gpu.index, gpu.last_xid);
    }
    // Another job on the machine may take memory that is none of ours.
    if (!whole_node || !gpu.memory_used || !was->memory_used) continue;
    if (*gpu.memory_used > *was->memory_used + kKeptByDriver) {
      return fmt::format("GPU {} still has {} MiB in use, {} MiB before the job", gpu.index,
                         *gpu.memory_used >> 20, *was->memory_used >> 20);
    }
  }
  return {};
}

std::string disk_fault(const std::string& directory) {
  struct stat info {};
  if (directory.empty() || ::stat(directory.c_str(), &info) != 0) return {};
  auto path = directory + "/.elastrun-check-XXXXXX";
  const UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  // That a directory was never ours to write does not mean that a disk has failed.
  if (!file && (errno == EACCES || errno == EPERM)) return {};
  const bool written = file && ::write(file.get(), "elastrun", 8) == 8 && ::fsync(file.get()) == 0;
  const int why = errno;
  if (file) ::unlink(path.c_str());
  if (written) return {};
  return fmt::format("nothing can be written in {} ({})", directory, std::strerror(why));
}

NodeCheck::NodeCheck(std::vector<std::string> directories, std::size_t workers,
                     std::function<std::vector<system::GpuUse>()> sample,
                     std::function<void()> wait)
    : directories_(std::move(directories)),
      workers_(workers),
      sample_(sample ? std::move(sample) : std::function<std::vector<system::GpuUse>()>([this] {
        return nvml_.sample();
      })),
      wait_(wait ? std::move(wait) : std::function<void()>([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
      })) {}

std::string NodeCheck::fault() {
  for (const auto& directory : directories_) {
    if (auto text = disk_fault(directory); !text.empty()) return text;
  }
  std::string text;
  for (int look = 0; look < kLooks; ++look) {
    const auto now = sample_();
    text = gpu_fault(before_, now, now.size() <= workers_);
    // An Xid does not go away; memory may need seconds.
    if (text.empty() || text.contains("Xid")) return text;
    wait_();
  }
  return text;
}

}  // namespace elastrun::agent
