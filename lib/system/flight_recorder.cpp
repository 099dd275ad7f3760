// SPDX-License-Identifier: Apache-2.0
#include "system/flight_recorder.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"

#include <algorithm>
#include <fcntl.h>
#include <fmt/format.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace elastrun::system {
namespace {

std::string value_of(const std::vector<std::string>& environment, std::string_view name) {
  for (const auto& variable : environment) {
    const bool named = variable.starts_with(name) && variable.size() > name.size();
    if (named && variable[name.size()] == '=') return variable.substr(name.size() + 1);
  }
  return {};
}

/// Below torch's cache, as c10d/FlightRecorder has it.
std::string default_dump(const std::vector<std::string>& environment) {
  auto cache = value_of(environment, "XDG_CACHE_HOME");
  const auto home = value_of(environment, "HOME");
  if (cache.empty()) cache = (home.empty() ? "/tmp" : home) + "/.cache";
  return cache + "/torch/comm_lib_trace_rank_";
}

/// Only a pipe with a reader: a plain file of that name is not torch's.
bool write_to_pipe(const std::string& path) {
  // O_NONBLOCK: with no reader open(2) of a FIFO then fails with ENXIO, and does not wait for one.
  const UniqueFd pipe(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  struct stat info {};
  if (!pipe || ::fstat(pipe.get(), &info) != 0 || !S_ISFIFO(info.st_mode)) return false;
  return ::write(pipe.get(), "1\n", 2) == 2;
}

/// Times of files are of the last tick, and those of another machine may be behind.
bool is_written_since(const std::string& path, WallTime since) {
  constexpr auto kTolerance = std::chrono::seconds(1);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  const auto written =
      std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
  return WallTime(written) + kTolerance >= since;
}

}  // namespace

FlightRecorder flight_recorder_of(const std::vector<std::string>& environment, int rank) {
  FlightRecorder recorder;
  const auto number = std::to_string(rank);
  for (const std::string_view name :
       {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE",
        "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
    const auto stem = value_of(environment, name);
    if (stem.empty()) continue;
    recorder.pipes.push_back(stem + number + ".pipe");
    const bool is_dump = name.ends_with("_TEMP_FILE");
    if (is_dump && recorder.dump.empty()) recorder.dump = stem + number;
  }
  if (recorder.dump.empty()) recorder.dump = default_dump(environment) + number;
  return recorder;
}

std::vector<std::string> environment_of(pid_t process) {
  const auto text = read_kernel_file(fmt::format("/proc/{}/environ", process));
  if (text.empty()) return {};
  return split(text, '\0');
}

std::vector<std::string> find_dumps(const std::vector<FlightRecorder>& recorders, WallTime since) {
  std::vector<std::string> dumps;
  for (const auto& recorder : recorders) {
    const bool asked = std::ranges::any_of(recorder.pipes, write_to_pipe);
    if (asked || is_written_since(recorder.dump, since)) dumps.push_back(recorder.dump);
  }
  return dumps;
}

}  // namespace elastrun::system
