// SPDX-License-Identifier: Apache-2.0
#include "system/devices.hpp"

#include "support/fake_files.hpp"
#include "support/stub_worker.hpp"

#include <doctest/doctest.h>
#include <map>

using namespace elastrun::system;
using namespace elastrun::test;

namespace {

ReadVariable variables(std::map<std::string, std::string> values) {
  return [values](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

DeviceSources nothing_but(const FakeFiles& files) {
  return {"/no/such/library.so", files.root() + "/proc", files.root() + "/dev",
          files.root() + "/sys"};
}

const std::vector<Gpu> kFour{{"0000:17:00.0", "GPU-aa11"},
                             {"0000:31:00.0", "GPU-aa22"},
                             {"0000:b1:00.0", "GPU-bb33"},
                             {"0000:ca:00.0", "GPU-cc44"}};

}  // namespace

TEST_CASE("devices: CUDA_VISIBLE_DEVICES is read as torch reads it") {
  using Seen = std::vector<int>;
  const std::map<std::string, Seen> cases{{"", {}},
                                          {"0", {0}},
                                          {"3,1", {3, 1}},
                                          {" 2 , 0 ", {2, 0}},
                                          {"0,1,0", {}},
                                          {"0,-1,2", {0}},
                                          {"-1", {}},
                                          {"0,4,1", {0}},
                                          {"1gpu2,2x", {1, 2}},
                                          {"NoDevFiles", {}},
                                          {"0,,1", {0}},
                                          {"+1", {1}},
                                          {"7,7", {}},
                                          {"GPU-b", {2}},
                                          {"GPU-aa1,GPU-c", {0, 3}},
                                          {"GPU-aa", {}},
                                          {"GPU-b,1", {2}},
                                          {"GPU-b,GPU-bb33", {}},
                                          {"MIG-1234", {0}},
                                          {"GPU-x,GPU-b", {}}};
  for (const auto& [list, expected] : cases) {
    CAPTURE(list);
    CHECK(visible_gpus(kFour, list.c_str()) == expected);
  }
  CHECK(visible_gpus(kFour, nullptr) == Seen{0, 1, 2, 3});
  CHECK(visible_gpus({}, nullptr).empty());
  CHECK(visible_gpus({}, "MIG-1").empty());
}

TEST_CASE("devices: without library and files there are none") {
  const FakeFiles files;
  CHECK(count_gpus(variables({}), nothing_but(files)) == 0);
  CHECK(count_xpus(nothing_but(files)) == 0);
  CHECK(gpu_numa_nodes(variables({}), nothing_but(files)).empty());
}

TEST_CASE("devices: NVML gives addresses and UUIDs, and counts one that does not answer") {
  DeviceSources sources;
  sources.nvml = std::filesystem::path(stub_worker()).parent_path() / "libfake_nvml.so";
  CHECK(find_nvidia_gpus(sources) ==
        std::vector<Gpu>{{"0000:17:00.0", "GPU-aaaa-1"}, {"0000:ca:00.0", "GPU-bbbb-2"}, {"", ""}});
  CHECK(count_gpus(variables({}), sources) == 3);
  CHECK(count_gpus(variables({{"CUDA_VISIBLE_DEVICES", "GPU-bbbb"}}), sources) == 1);
  CHECK(count_gpus(variables({{"CUDA_VISIBLE_DEVICES", ""}}), sources) == 0);
}

TEST_CASE("devices: the driver's directory is read where NVML is missing") {
  const FakeFiles files;
  files.add("proc/driver/nvidia/gpus/0000:ca:00.0/information",
            "Model: \t\t NVIDIA X\nIRQ:   \t\t 17\nGPU UUID: \t GPU-bbbb\n");
  files.add("proc/driver/nvidia/gpus/0000:17:00.0/information", "GPU UUID: \t GPU-aaaa\n");
  files.add("dev/nvidia0");
  files.add("sys/bus/pci/devices/0000:ca:00.0/numa_node", "1\n");
  files.add("sys/bus/pci/devices/0000:17:00.0/numa_node", "-1\n");
  const auto sources = nothing_but(files);
  CHECK(find_nvidia_gpus(sources) ==
        std::vector<Gpu>{{"0000:17:00.0", "GPU-aaaa"}, {"0000:ca:00.0", "GPU-bbbb"}});
  CHECK(gpu_numa_nodes(variables({}), sources) == std::vector<int>{0, 1});
  CHECK(gpu_numa_nodes(variables({{"CUDA_VISIBLE_DEVICES", "1,0"}}), sources) ==
        std::vector<int>{1, 0});
}

TEST_CASE("devices: device files are counted where there is nothing else") {
  const FakeFiles files;
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia"}) {
    files.add(std::string("dev/") + name);
  }
  CHECK(count_gpus(variables({}), nothing_but(files)) == 3);
  CHECK(count_gpus(variables({{"CUDA_VISIBLE_DEVICES", "2,3"}}), nothing_but(files)) == 1);
}

TEST_CASE("devices: AMD processors are counted with their own variables") {
  const FakeFiles files;
  files.add("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
  for (const char* node : {"1", "2", "3"}) {
    files.add(std::string("sys/class/kfd/kfd/topology/nodes/") + node + "/gpu_id", "4098\n");
  }
  const auto sources = nothing_but(files);
  CHECK(count_gpus(variables({}), sources) == 3);
  CHECK(count_gpus(variables({{"HIP_VISIBLE_DEVICES", "0,1"}}), sources) == 2);
  CHECK(count_gpus(variables({{"ROCR_VISIBLE_DEVICES", "2"}}), sources) == 1);
  CHECK(count_gpus(variables({{"CUDA_VISIBLE_DEVICES", "0"}}), sources) == 1);
}

TEST_CASE("devices: Intel render nodes are counted, not those of others") {
  const FakeFiles files;
  files.add("sys/class/drm/renderD128/device/vendor", "0x8086\n");
  files.add("sys/class/drm/renderD129/device/vendor", "0x10de\n");
  files.add("sys/class/drm/card0/device/vendor", "0x8086\n");
  CHECK(count_xpus(nothing_but(files)) == 1);
  files.add("sys/class/drm/renderD128/device/numa_node", "1\n");
  CHECK(gpu_numa_nodes(variables({}), nothing_but(files)) == std::vector<int>{1});
}
