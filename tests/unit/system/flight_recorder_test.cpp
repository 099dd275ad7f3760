// SPDX-License-Identifier: Apache-2.0
#include "system/flight_recorder.hpp"

#include "core/unique_fd.hpp"
#include "support/fake_files.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace elastrun;
using system::FlightRecorder;

TEST_CASE("flight recorder: its pipe and dump are where torch's variables say") {
  using Names = std::vector<std::string>;
  CHECK(system::flight_recorder_of({"HOME=/home/ada"}, 3) ==
        FlightRecorder{{}, "/home/ada/.cache/torch/comm_lib_trace_rank_3"});
  CHECK(system::flight_recorder_of({"XDG_CACHE_HOME=/c", "HOME=/h"}, 3).dump ==
        "/c/torch/comm_lib_trace_rank_3");
  const auto recorder = system::flight_recorder_of(
      {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/old_", "TORCH_FR_DUMP_TEMP_FILE=/new_",
       "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/pipe_", "TORCH_FR_DUMP_TEMP_FILE_X=/no",
       "TORCH_FR_DEBUG_INFO_PIPE_FILE=/xccl_"},
      12);
  CHECK(recorder.pipes == Names{"/pipe_12.pipe", "/xccl_12.pipe", "/new_12.pipe", "/old_12.pipe"});
  CHECK(recorder.dump == "/new_12");
}

TEST_CASE("flight recorder: only a pipe that somebody reads is written to") {
  test::FakeFiles files;
  const auto path = [&](const char* name) { return files.root() + "/" + name; };
  REQUIRE(::mkfifo(path("read.pipe").c_str(), 0600) == 0);
  REQUIRE(::mkfifo(path("alone.pipe").c_str(), 0600) == 0);
  std::ofstream(path("file.pipe")) << "kept";
  const UniqueFd reader(::open(path("read.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(system::find_dumps({{{path("absent"), path("read.pipe")}, "/dump0"},
                            {{path("alone.pipe")}, "/dump1"},
                            {{path("file.pipe")}, "/dump2"},
                            {{}, "/dump3"}},
                           {}) == std::vector<std::string>{"/dump0"});
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 1);
  std::string text;
  std::ifstream(path("file.pipe")) >> text;
  CHECK(text == "kept");
}

TEST_CASE("flight recorder: a dump that torch has written by itself since then is found") {
  using Names = std::vector<std::string>;
  const test::FakeFiles files;
  const auto path = [&](const char* name) { return files.root() + "/" + name; };
  const auto now = std::chrono::system_clock::now();
  files.add("new", "dump");
  files.add("empty");
  files.add("folder/x");
  const std::vector<FlightRecorder> recorders{
      {{}, path("new")}, {{}, path("empty")}, {{}, path("folder")}, {{}, path("absent")}};
  CHECK(system::find_dumps(recorders, now) == Names{path("new")});
  CHECK(system::find_dumps(recorders, now + std::chrono::minutes(1)).empty());  // of an earlier run
}

TEST_CASE("flight recorder: a process has the environment that it was started with") {
  const auto own = system::environment_of(::getpid());
  const std::string path = std::string("PATH=") + std::getenv("PATH");
  CHECK(std::ranges::find(own, path) != own.end());
  CHECK(system::environment_of(-1).empty());
}
