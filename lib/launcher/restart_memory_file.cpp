// SPDX-License-Identifier: Apache-2.0
#include "launcher/restart_memory_file.hpp"

#include "core/file_io.hpp"
#include "core/log.hpp"
#include "core/text.hpp"
#include "files/whole_file.hpp"
#include "rendezvous/wire/messages.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <sys/stat.h>

namespace elastrun::agent {
namespace {

constexpr std::size_t kLargestMemory = 256u << 10;

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
  return std::make_shared<const rendezvous::RestartMemory>(memory.aged(since));
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

}  // namespace elastrun::agent
