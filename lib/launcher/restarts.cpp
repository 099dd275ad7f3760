// SPDX-License-Identifier: Apache-2.0

#include "launcher/restarts.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "files/whole_file.hpp"
#include "rendezvous/wire/messages.hpp"
#include "store/server.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace elastrun::agent {
namespace {

constexpr std::size_t kLargestMemory = 256u << 10;

// What a driver keeps for itself, and for a monitor beside the job.
constexpr std::uint64_t kKeptByDriver = 512ull << 20;

// Of a range that is looked at: each that is in use takes a look at /proc.
constexpr int kMostPorts = 8;

}  // namespace

struct Kept {
  rendezvous::RestartMemory memory;
  double saved = 0;  // when, in seconds since the epoch
};
void members(Codec& codec, Kept& kept) {
  members(codec, kept.memory);
  codec("saved", kept.saved, 0, 1e11);
}

Result<std::shared_ptr<const rendezvous::RestartMemory>> RestartMemoryFile::read(
    const std::string& path, WallTime now) {
  struct stat found {};
  if (path.empty() || ::stat(path.c_str(), &found) != 0) return nullptr;
  // To open a pipe that none writes to would wait for a writer, and put_file would replace it.
  if (!S_ISREG(found.st_mode)) {
    return fail(Code::Io, fmt::format("--restart-memory {}: not a regular file; name one that "
                                      "is, or that does not exist yet",
                                      path));
  }
  const auto text = read_file(path, kLargestMemory);
  const auto value = text ? parse_json(*text) : std::unexpected(text.error());
  Kept kept;
  if (!value || !from_json(*value, kept).empty()) {
    log::warning("restarts", "--restart-memory {}: not what elastrun writes; a new one begins",
                 path);
    return nullptr;
  }
  // Clocks of nodes differ a little: nothing is younger than it was.
  const Duration since = std::max(from_seconds(to_seconds(now) - kept.saved), Duration::zero());
  auto& memory = kept.memory;
  memory.spent = memory.used = memory.level = 0;
  memory.uses.clear();
  memory.age(since);
  return std::make_shared<const rendezvous::RestartMemory>(std::move(memory));
}

void RestartMemoryFile::write(const std::shared_ptr<const rendezvous::RestartMemory>& memory) {
  const auto& path = run_.spec.restart_memory;
  if (!writes_ || path.empty() || !memory) return;
  const Kept kept{*memory, to_seconds(run_.clock.wall())};
  run_.lanes[files::Lane::Logs].make(
      path,
      [path, text = json::serialize(to_json(kept)) + "\n"] {
        return files::put_file(path, text, 0644);
      },
      [](const Status& written) {
        if (!written) log::warning("restarts", "--restart-memory: {}", written.error().text);
      });
}

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

std::string port_fault(const rendezvous::StorePlan& plan) {
  std::string text;
  if (plan.ports.last - plan.ports.first >= kMostPorts) return text;
  for (int port = plan.ports.first; port <= plan.ports.last; ++port) {
    const auto opened = store::open_listening(plan.bind_address, static_cast<std::uint16_t>(port));
    if (opened) return {};
    text = opened.error().text;
    // For any other reason it could not be asked.
    if (!text.contains("is in use")) return {};
  }
  return text;
}

std::string NodeCheck::fault(const std::optional<rendezvous::StorePlan>& needs) {
  for (const auto& directory : directories_) {
    if (auto text = disk_fault(directory); !text.empty()) return text;
  }
  std::string text;
  // What drivers and /proc take comes on top of the waits; what is found after RestartCheck's limit
  // would be told to no one.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  for (int look = 0; look < kLooks && std::chrono::steady_clock::now() < until; ++look) {
    text = transient_fault(needs);
    // An Xid does not go away; memory and ports may need seconds.
    if (text.empty() || text.contains("Xid")) return text;
    wait();
  }
  return text;
}

void RestartCheck::look(Then then) {
  then_ = std::move(then);
  limit_->arm(clock_.now() + kLimit, [this] {
    log::warning("restarts", "The check of this node has not ended within 5 s; it goes on without");
    answer({});
  });
  calls_.make(
      "the check of this node",
      [check = check_, needs = store_.needs()]() -> Result<std::string> {
        return check->fault(needs);
      },
      [this, alive = lifetime_.token()](const Result<std::string>& fault) {
        if (alive) answer(fault.value_or(std::string()));
      });
}

}  // namespace elastrun::agent
