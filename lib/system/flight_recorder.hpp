// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace elastrun::system {

/// Where PyTorch's flight recorder of collectives listens in a worker and writes its dump
/// (ProcessGroupNCCL: TORCH_NCCL_DEBUG_INFO_PIPE_FILE, TORCH_FR_DUMP_TEMP_FILE or
/// TORCH_NCCL_DEBUG_INFO_TEMP_FILE, each with the rank behind it, the pipe also with ".pipe").
struct FlightRecorder {
  std::vector<std::string> pipes;  // where it may be
  std::string dump;
  bool operator==(const FlightRecorder&) const = default;
};
/// By the environment, "NAME=VALUE", that the worker was started with. Pure.
FlightRecorder flight_recorder_of(const std::vector<std::string>& environment, int rank);

/// Asks those for a dump that have made their pipe, and gives the names of the files into which
/// they write it, soon. Waits for the file system, and for nobody's answer.
std::vector<std::string> trigger_dumps(const std::vector<FlightRecorder>& recorders);

}  // namespace elastrun::system
