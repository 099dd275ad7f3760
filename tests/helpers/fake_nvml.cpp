// SPDX-License-Identifier: Apache-2.0
// Stands for libnvidia-ml.so.1 in tests: three processors, of which the last does not answer, and
// the second tells little, but has had an Xid error. FAKE_NVML_HANGS_AT_END: nor is
// it ever closed. FAKE_NVML_CLIQUE: the second has joined an NVLink domain, with that clique, or
// "hangs": it is asked for without an end.
#include <cstdlib>
#include <cstring>
#include <unistd.h>

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
  while (std::getenv("FAKE_NVML_HANGS_AT_END") != nullptr) ::pause();
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

int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::strncpy(version, "555.1", size);
  return 0;
}

int nvmlDeviceGetName(void*, char* name, unsigned size) {
  std::strncpy(name, "Fake H200", size);
  return 0;
}

int nvmlDeviceGetUtilizationRates(void*, unsigned* both) {
  both[0] = 75;
  both[1] = 20;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, unsigned long long* bytes) {
  bytes[0] = 8192;
  bytes[1] = bytes[2] = 4096;
  return 0;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 350500;
  return index_of(device) == 0 ? 0 : 3;  // NVML_ERROR_NOT_SUPPORTED
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  *millijoules = 12345;
  return 0;
}

int nvmlDeviceGetTemperature(void*, int, unsigned* degrees) {
  *degrees = 61;
  return 0;
}

int nvmlDeviceGetTotalEccErrors(void*, int, int, unsigned long long* errors) {
  *errors = 2;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = index_of(device) == 0 ? 0x1 | 0x2 | 0x100 | 0x4 | 0x40 : 0x80;
  return 0;
}

struct FakeFabric {
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

int nvmlDeviceGetGpuFabricInfo(void* device, FakeFabric* info) {
  const char* clique = std::getenv("FAKE_NVML_CLIQUE");
  if (clique == nullptr) return 3;  // NVML_ERROR_NOT_SUPPORTED
  while (std::strcmp(clique, "hangs") == 0) ::pause();
  *info = {};
  info->state = index_of(device) == 0 ? 2 : 3;  // in progress, completed
  info->cluster[0] = 0xab;
  info->cluster[15] = 0x01;
  info->clique = static_cast<unsigned>(std::atoi(clique));
  return 0;
}

int nvmlEventSetCreate(void** set) {
  *set = &started;
  return 0;
}

int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) {
  return 0;
}

int nvmlEventSetFree(void*) {
  return 0;
}

struct FakeEvent {
  void* device;
  unsigned long long type, data;
  unsigned instances[2];
};

int nvmlEventSetWait_v2(void*, FakeEvent* event, unsigned) {
  static bool told = false;
  if (told) return 10;  // NVML_ERROR_TIMEOUT
  told = true;
  *event = {&devices[1], 8, 79, {}};
  return 0;
}
}
