// SPDX-License-Identifier: Apache-2.0
#include "system/flight_recorder.hpp"

#include "core/unique_fd.hpp"
#include "support/fake_files.hpp"

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
       "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/pipe_", "TORCH_FR_DUMP_TEMP_FILE_X=/no"},
      12);
  CHECK(recorder.pipes == Names{"/pipe_12.pipe", "/new_12.pipe", "/old_12.pipe"});
  CHECK(recorder.dump == "/new_12");
}

TEST_CASE("flight recorder: only a pipe that somebody reads is written to") {
  test::FakeFiles files;
  const auto path = [&](const char* name) { return files.root() + "/" + name; };
  REQUIRE(::mkfifo(path("read.pipe").c_str(), 0600) == 0);
  REQUIRE(::mkfifo(path("alone.pipe").c_str(), 0600) == 0);
  std::ofstream(path("file.pipe")) << "kept";
  const UniqueFd reader(::open(path("read.pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  CHECK(system::trigger_dumps({{{path("absent"), path("read.pipe")}, "/dump0"},
                               {{path("alone.pipe")}, "/dump1"},
                               {{path("file.pipe")}, "/dump2"},
                               {{}, "/dump3"}}) == std::vector<std::string>{"/dump0"});
  char byte = 0;
  CHECK(::read(reader.get(), &byte, 1) == 1);
  std::string text;
  std::ifstream(path("file.pipe")) >> text;
  CHECK(text == "kept");
}
