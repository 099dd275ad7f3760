// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/sources.hpp"

#include <functional>
#include <string>
#include <vector>

namespace elastrun::system {

/// A graphics processor as the system shows it, before any variable hides it.
struct Gpu {
  std::string pci_address;  // "0000:17:00.0", as in /sys/bus/pci/devices; empty if not known
  std::string uuid;         // "GPU-..."; empty if not known
  bool operator==(const Gpu&) const = default;
};

/// The places to look at; only tests change them.
struct DeviceSources {
  std::string nvml = "libnvidia-ml.so.1";
  std::string proc = "/proc";
  std::string dev = "/dev";
  std::string sys = "/sys";
};

using ReadVariable = std::function<const char*(const char*)>;

/// The NVIDIA processors in order of their PCI addresses, which is CUDA's own order under
/// CUDA_DEVICE_ORDER=PCI_BUS_ID: by NVML, loaded for this question only, else by the driver's
/// directory in /proc, else by the device files (of which only the number is known).
std::vector<Gpu> find_nvidia_gpus(const DeviceSources& sources = {});

/// Which of `gpus` a process sees with this CUDA_VISIBLE_DEVICES (null: unset), in the order of the
/// list, by the rules of torch's device_count: numbers or the beginnings of UUIDs; it ends at the
/// first that is none; a repetition leaves nothing. Of MIG instances CUDA shows one: {0}.
std::vector<int> visible_gpus(const std::vector<Gpu>& gpus, const char* list);

/// Counts like torch.cuda.device_count(), without torch: NVIDIA, or else AMD under
/// HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES. 0 if there are none. Pass `getenv`.
int count_gpus(const ReadVariable& variable, const DeviceSources& sources = {});
/// Intel graphics processors that have a driver.
int count_xpus(const DeviceSources& sources = {});

/// For each GPU that a process sees, in its order, the NUMA node: of NVIDIA, or else of Intel; 0
/// where the system does not tell, as torchrun takes it.
std::vector<int> gpu_numa_nodes(const ReadVariable& variable, const DeviceSources& sources = {});

/// True if there are device files of accelerators that only torch and its extensions can count:
/// Ascend, Gaudi, Moore Threads, Cambricon.
bool has_other_accelerators(const DeviceSources& sources = {});

/// Asks torch about the accelerator `name`, or about the current one for "auto": `interpreter`, a
/// path or a name in PATH, imports it with all extensions that are installed for it. Takes as long
/// as that import, two minutes at most; a signal ends it. Expects a single thread. Fails if the
/// interpreter has no torch, or its torch knows no such accelerator.
Result<spec::Accelerators> ask_torch(const std::string& interpreter, const std::string& name);

}  // namespace elastrun::system
