// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/clock.hpp"

#include <string>
#include <sys/types.h>
#include <vector>

namespace elastrun::system {

/// The places where PyTorch's flight recorder of collectives listens in a worker and writes its
/// dump: torch 2.13 has a pipe only where TORCH_NCCL_DEBUG_INFO_PIPE_FILE (for XCCL
/// TORCH_FR_DEBUG_INFO_PIPE_FILE) names one, and a dump below TORCH_FR_DUMP_TEMP_FILE or
/// TORCH_NCCL_DEBUG_INFO_TEMP_FILE, or else in its cache; each with the rank behind it, the pipe
/// also with ".pipe".
struct FlightRecorder {
  std::vector<std::string> pipes;  // where it may be
  std::string dump;
  bool operator==(const FlightRecorder&) const = default;
};
/// Reads them from the environment, "NAME=VALUE", that the worker was started with. Pure.
FlightRecorder flight_recorder_of(const std::vector<std::string>& environment, int rank);
/// Reads a process's environment at its start, from proc(5); empty where that is forbidden.
std::vector<std::string> environment_of(pid_t process);

/// Asks those for a dump that have made their pipe, and gives the names of the files into which
/// they write it, soon; of the others those that are there and not older than `since`: torch writes
/// them by itself when a collective has taken too long. Waits for the file system, but not for the
/// workers' answers.
std::vector<std::string> find_dumps(const std::vector<FlightRecorder>& recorders, WallTime since);

}  // namespace elastrun::system
