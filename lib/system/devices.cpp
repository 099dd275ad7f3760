// SPDX-License-Identifier: Apache-2.0

#include "system/devices.hpp"

#include "core/file_io.hpp"
#include "core/text.hpp"
#include "core/unique_fd.hpp"
#include "process/signals.hpp"
#include "process/spawn.hpp"
#include "system/machine.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace elastrun::system {
namespace {

// Extensions rename the back end PrivateUse1 to theirs and put a module of that name into torch;
// those that torch has itself have one, too. The answer is one line: a type and a number, or "!"
// and why there is none. It goes where extensions, which like to print, do not reach. A folder
// named torch where the job was started is not asked: the scripts of workers do not import it.
constexpr const char* kQuestion = R"(
import os, sys
if sys.path[:1] == [""]:
    del sys.path[0]
answer = os.dup(1)
os.dup2(2, 1)
def say(text):
    os.write(answer, text.encode())
    os._exit(0)
name = sys.argv[1]
try:
    import torch
except ImportError as error:
    say("!%s cannot import torch: %s" % (sys.executable, error))
try:
    if name == "auto":
        there = torch.accelerator.is_available()
        name = torch.accelerator.current_accelerator().type if there else "cpu"
        count = torch.accelerator.device_count() if there else 0
    else:
        module = getattr(torch, name, None)
        if not hasattr(module, "device_count") or not hasattr(module, "is_available"):
            say("!torch %s knows no accelerator of this name" % torch.__version__)
        count = module.device_count() if module.is_available() else 0
except Exception as error:
    say("!torch says: %r" % error)
say("%s %d" % (name, count))
)";

std::string content_of(int file) {
  std::array<char, 1024> text{};
  const auto size = ::pread(file, text.data(), text.size(), 0);
  return {text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

void become_python(const std::string& interpreter, const std::string& name, int answer) {
  ::dup2(answer, STDOUT_FILENO);
  const auto none = process::set_of({});
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Where this returns, the child ends without an answer, which is told as such.
  ::execlp(interpreter.c_str(), interpreter.c_str(), "-c", kQuestion, name.c_str(), nullptr);
}

}  // namespace

bool has_other_accelerators(const DeviceSources& sources) {
  for (const char* file : {"/davinci0", "/accel/accel0", "/mtgpu.0", "/cambricon_dev0"}) {
    if (::access((sources.dev + file).c_str(), F_OK) == 0) return true;
  }
  return false;
}

Result<spec::Accelerators> ask_torch(const std::string& interpreter, const std::string& name) {
  using std::chrono::seconds;
  // A file in memory, not a pipe: what torch's extensions start and leave cannot keep it open for
  // us.
  const UniqueFd answer(::memfd_create("accelerators", MFD_CLOEXEC));
  // The end of a child and the signals that end a job wait to be taken, as do_in_child() expects: a
  // command line is read before the job has blocked them.
  const process::BlockedSignals blocked(
      process::set_of({SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM}));
  const auto ask = [&] { become_python(interpreter, name, answer.get()); };
  if (!answer || !process::do_in_child(ask, {.limit = seconds(120), .after_signal = seconds(1)})) {
    return fail(Code::Io, "the system makes no process for " + interpreter);
  }
  const auto text = content_of(answer.get());
  if (text.starts_with('!')) return fail(Code::Usage, text.substr(1));
  const auto space = text.find(' ');
  const auto count = parse_int(space == std::string::npos ? "" : text.substr(space + 1));
  if (!count || *count < 0 || *count > 4096) {
    return fail(Code::Usage, interpreter + " gave no answer about torch's accelerators");
  }
  return spec::Accelerators{text.substr(0, space), static_cast<int>(*count)};
}

namespace {

namespace fs = std::filesystem;

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    names.push_back(entry.path().filename().string());
  }
  // readdir(3) has no order, and a device is known by its place.
  std::sort(names.begin(), names.end());
  return names;
}

std::string first_line(const std::string& path) {
  const auto text = read_kernel_file(path);
  return text.substr(0, text.find('\n'));
}

std::vector<Gpu> by_driver_directory(const std::string& proc) {
  std::vector<Gpu> gpus;
  const std::string root = proc + "/driver/nvidia/gpus";
  for (const std::string& address : entries(root)) {
    Gpu gpu{address, ""};
    for (const auto& line : split(read_kernel_file(root + "/" + address + "/information"), '\n')) {
      if (line.starts_with("GPU UUID:")) gpu.uuid = trim(line.substr(line.find(':') + 1));
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::vector<Gpu> by_device_files(const std::string& dev) {
  constexpr std::string_view kStart = "nvidia";
  const auto count = std::ranges::count_if(entries(dev), [&](std::string_view name) {
    return name.starts_with(kStart) && name.size() > kStart.size() &&
           name.find_first_not_of("0123456789", kStart.size()) == name.npos;
  });
  return std::vector<Gpu>(static_cast<std::size_t>(count));
}

// The number at the beginning of a text, however it goes on, as strtoul(3) reads it; -1 without.
long leading_number(std::string_view text) {
  text = trim(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  long number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

int by_uuid(const std::vector<Gpu>& gpus, const std::string& start) {
  int found = -1;
  for (std::size_t index = 0; index < gpus.size(); ++index) {
    if (!gpus[index].uuid.starts_with(start)) continue;
    if (found >= 0) return -1;  // ambiguous
    found = static_cast<int>(index);
  }
  return found;
}

/// Intel's devices in /sys.
std::vector<std::string> xpu_folders(const DeviceSources& sources) {
  const std::string root = sources.sys + "/class/drm/";
  std::vector<std::string> folders;
  for (const std::string& name : entries(root)) {
    // A render node stands for a processor with a driver; cards and their connectors do not.
    const std::string folder = root + name + "/device";
    if (name.starts_with("renderD") && first_line(folder + "/vendor") == "0x8086") {
      folders.push_back(folder);
    }
  }
  return folders;
}

// The kernel writes -1 on a machine that has one node.
int numa_node_in(const std::string& folder) {
  const auto node = parse_int(first_line(folder + "/numa_node"));
  return static_cast<int>(std::max<std::int64_t>(node.value_or(0), 0));
}

int count_amd(const ReadVariable& variable, const std::string& sys) {
  const std::string nodes = sys + "/class/kfd/kfd/topology/nodes";
  std::vector<Gpu> gpus;
  for (const std::string& node : entries(nodes)) {
    const auto id = parse_int(first_line(nodes + "/" + node + "/gpu_id"));
    if (id.value_or(0) != 0) gpus.emplace_back();  // 0 is a processor without graphics
  }
  const char* const rocr = variable("ROCR_VISIBLE_DEVICES");
  const char* hip = variable("HIP_VISIBLE_DEVICES");
  if (hip == nullptr && rocr != nullptr) {
    return static_cast<int>(std::min(gpus.size(), split(rocr, ',').size()));
  }
  if (hip == nullptr) hip = variable("CUDA_VISIBLE_DEVICES");
  return static_cast<int>(visible_gpus(gpus, hip).size());
}

}  // namespace

std::vector<Gpu> find_nvidia_gpus(const DeviceSources& sources) {
  std::vector<Gpu> gpus;
  // In the order of trust: device files stay when their driver is gone. NVML and not CUDA, which
  // would initialise the driver in this process to count devices. A driver that answers with none
  // is an answer; one that does not is asked by other ways.
  if (const auto known = Nvml(sources.nvml).known()) {
    for (const auto& gpu : *known) gpus.push_back({gpu.pci_address, gpu.uuid});
    return gpus;
  }
  gpus = by_driver_directory(sources.proc);
  return gpus.empty() ? by_device_files(sources.dev) : gpus;
}

std::vector<int> visible_gpus(const std::vector<Gpu>& gpus, const char* list) {
  std::vector<int> seen;
  if (list == nullptr) {
    seen.resize(gpus.size());
    std::iota(seen.begin(), seen.end(), 0);
    return seen;
  }
  const std::string text = list;
  // CUDA shows one MIG slice at most, whatever the list goes on to say.
  if (text.starts_with("MIG-")) return gpus.empty() ? seen : std::vector<int>{0};
  const bool uuids = text.starts_with("GPU-");
  std::vector<long> named;  // also those beyond the last one, since a repetition of them counts too
  for (const std::string& element : split(text, ',')) {
    const long number = !uuids                        ? leading_number(element)
                        : element.starts_with("GPU-") ? by_uuid(gpus, element)
                                                      : -1;
    // As CUDA does: the first element that names no device ends the list.
    if (number < 0) break;
    if (std::find(named.begin(), named.end(), number) != named.end()) return {};
    named.push_back(number);
  }
  for (const long number : named) {
    if (number >= static_cast<long>(gpus.size())) break;
    seen.push_back(static_cast<int>(number));
  }
  return seen;
}

int count_gpus(const ReadVariable& variable, const DeviceSources& sources) {
  const auto gpus = find_nvidia_gpus(sources);
  if (gpus.empty()) return count_amd(variable, sources.sys);
  return static_cast<int>(visible_gpus(gpus, variable("CUDA_VISIBLE_DEVICES")).size());
}

int count_xpus(const DeviceSources& sources) {
  return static_cast<int>(xpu_folders(sources).size());
}

std::vector<int> gpu_numa_nodes(const ReadVariable& variable, const DeviceSources& sources) {
  const auto gpus = find_nvidia_gpus(sources);
  std::vector<int> nodes;
  for (const int index : visible_gpus(gpus, variable("CUDA_VISIBLE_DEVICES"))) {
    const auto& address = gpus[static_cast<std::size_t>(index)].pci_address;
    nodes.push_back(numa_node_in(sources.sys + "/bus/pci/devices/" + address));
  }
  if (!gpus.empty()) return nodes;
  for (const std::string& folder : xpu_folders(sources)) nodes.push_back(numa_node_in(folder));
  return nodes;
}

}  // namespace elastrun::system
