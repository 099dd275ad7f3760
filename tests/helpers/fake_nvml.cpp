// SPDX-License-Identifier: Apache-2.0
// Stands for libnvidia-ml.so.1 in tests: three processors, of which the last does not answer.
#include <cstring>

struct FakePciInfo {
  char legacy_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

namespace {
bool started = false;
char devices[3];
long index_of(void* device) {
  return static_cast<char*>(device) - devices;
}
}  // namespace

extern "C" {

int nvmlInit_v2() {
  started = true;
  return 0;
}

int nvmlShutdown() {
  started = false;
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return started ? 0 : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return started && index < 2 ? 0 : 15;  // NVML_ERROR_GPU_IS_LOST
}

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::strncpy(uuid, index_of(device) == 0 ? "GPU-aaaa-1" : "GPU-bbbb-2", size);
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, FakePciInfo* info) {
  info->domain = 0;
  info->bus = index_of(device) == 0 ? 0x17 : 0xca;
  info->device = 0;
  return 0;
}
}
