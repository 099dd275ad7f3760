// SPDX-License-Identifier: Apache-2.0
#include "system/proc_files.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace elastrun::system {
namespace {

std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

/// The words of a line, one after the other.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
    const auto word = rest_.substr(0, rest_.find_first_of(" \t"));
    rest_.remove_prefix(word.size());
    return word;
  }
  /// Up to `count` numbers; fewer if the line ends, or something else comes.
  template <std::size_t kCount>
  std::size_t numbers(std::array<std::uint64_t, kCount>& values) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto value = number(next());
      if (!value) return i;
      values[i] = *value;
    }
    return kCount;
  }

 private:
  std::string_view rest_;
};

template <class Each>
void each_line(std::string_view text, Each each) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    each(line);
  }
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

/// "sda1" of "sda", "nvme0n1p2" of "nvme0n1".
bool is_partition(std::string_view name, const std::vector<DeviceIo>& disks) {
  return std::ranges::any_of(disks, [&](const DeviceIo& disk) {
    if (!name.starts_with(disk.name)) return false;
    auto rest = name.substr(disk.name.size());
    const bool needs_p = disk.name.back() >= '0' && disk.name.back() <= '9';
    if (needs_p && !rest.starts_with('p')) return false;
    if (needs_p) rest.remove_prefix(1);
    return all_digits(rest);
  });
}

std::optional<double> seconds(std::optional<std::uint64_t> microseconds) {
  if (!microseconds) return std::nullopt;
  return static_cast<double>(*microseconds) / 1e6;
}

}  // namespace

std::optional<std::uint64_t> value_in(std::string_view text, std::string_view key) {
  std::optional<std::uint64_t> found;
  each_line(text, [&](std::string_view line) {
    if (found || !line.starts_with(key)) return;
    line.remove_prefix(key.size());
    // Or "pgfault" would be found in a line of "pgfault_x".
    if (line.empty() || !std::string_view(" :=\t").contains(line.front())) return;
    line.remove_prefix(std::min(line.find_first_not_of(" :=\t"), line.size()));
    found = number(line.substr(0, line.find_first_of(" \t")));
  });
  return found;
}

std::optional<CpuTimes> cpu_times_in(std::string_view stat, double ticks) {
  std::optional<CpuTimes> times;
  int cpus = 0;
  each_line(stat, [&](std::string_view line) {
    if (!line.starts_with("cpu")) return;
    Words words(line);
    const auto name = words.next();
    if (name.size() > 3) cpus += all_digits(name.substr(3)) ? 1 : 0;
    std::array<std::uint64_t, 8> all{};
    // Old kernels have fewer columns. guest and guest_nice, behind these, are in user and nice
    // already.
    if (name.size() > 3 || words.numbers(all) < 4) return;
    const auto of = [&](std::size_t i) { return static_cast<double>(all[i]) / ticks; };
    times = CpuTimes{of(0), of(1), of(2), of(3), of(4), of(5) + of(6), of(7)};
  });
  if (times) times->cpus = cpus;
  return times;
}

std::optional<MemoryUse> memory_in(std::string_view meminfo) {
  const auto bytes = [&](std::string_view key) {
    // The "kB" of this file are KiB. The bound keeps a number that no machine has from overflowing.
    return std::min(value_in(meminfo, key).value_or(0), UINT64_MAX >> 10) << 10;
  };
  MemoryUse use{bytes("MemTotal"), bytes("MemFree"), bytes("MemAvailable"), bytes("Buffers"),
                bytes("Cached")};
  if (use.total == 0) return std::nullopt;
  use.available = std::min(use.available, use.total);
  return use;
}

std::vector<DeviceIo> disks_in(std::string_view diskstats) {
  constexpr std::uint64_t kSector = 512;  // of this file, whatever the disk has
  std::vector<DeviceIo> disks;
  each_line(diskstats, [&](std::string_view line) {
    Words words(line);
    words.next();
    words.next();
    const auto name = words.next();
    std::array<std::uint64_t, 7> all{};
    if (name.empty() || words.numbers(all) < all.size()) return;
    // What they carry is counted again by the disks below them, or reaches no disk.
    for (const std::string_view virtual_one : {"loop", "ram", "dm-", "md", "zram", "sr", "fd"}) {
      if (name.starts_with(virtual_one)) return;
    }
    // A partition's bytes are in its disk's line, which comes before it.
    if (is_partition(name, disks)) return;
    disks.push_back({std::string(name), all[2] * kSector, all[6] * kSector});
  });
  return disks;
}

std::vector<DeviceIo> networks_in(std::string_view dev) {
  std::vector<DeviceIo> networks;
  each_line(dev, [&](std::string_view line) {
    const auto colon = line.find(':');
    if (colon == line.npos) return;  // the headings
    const auto name = Words(line.substr(0, colon)).next();
    std::array<std::uint64_t, 11> all{};
    Words words(line.substr(colon + 1));
    // Traffic of the machine with itself is none of the network.
    if (name.empty() || name == "lo" || words.numbers(all) < all.size()) return;
    networks.push_back({std::string(name), all[0], all[8], all[2], all[10]});
  });
  return networks;
}

std::optional<ProcessUse> process_use_in(std::string_view stat, double ticks, std::uint64_t page) {
  const auto name_end = stat.rfind(')');  // a name may hold blanks and parentheses
  if (name_end == stat.npos) return std::nullopt;
  Words words(stat.substr(name_end + 1, stat.find('\n', name_end) - name_end - 1));
  for (int i = 3; i < 9; ++i) words.next();       // state to tpgid, which may be -1
  std::array<std::uint64_t, 16 - 8 + 1> first{};  // flags (9) to cutime (16) and cstime (17)
  if (words.numbers(first) < first.size()) return std::nullopt;
  words.next();  // priority and nice may be negative
  words.next();
  std::array<std::uint64_t, 5> rest{};  // threads (20), itrealvalue, start, vsize, rss
  if (words.numbers(rest) < rest.size()) return std::nullopt;
  ProcessUse use;
  // With those of children that were waited for (cminflt): a total must not lose what they did.
  use.minor_faults = first[1] + first[2];
  use.major_faults = first[3] + first[4];
  use.user = static_cast<double>(first[5] + first[7]) / ticks;
  use.system = static_cast<double>(first[6] + first[8]) / ticks;
  use.threads = rest[0];
  use.start_ticks = rest[2];
  use.virtual_bytes = rest[3];
  use.resident_bytes = rest[4] * page;
  return use;
}

std::optional<DeviceIo> process_io_in(std::string_view io) {
  const auto read = value_in(io, "read_bytes"), written = value_in(io, "write_bytes");
  if (!read || !written) return std::nullopt;
  return DeviceIo{"", *read, *written};
}

CgroupUse cgroup_use_in(const CgroupTexts& texts) {
  CgroupUse use;
  use.cpu_user = seconds(value_in(texts.cpu_stat, "user_usec"));
  use.cpu_system = seconds(value_in(texts.cpu_stat, "system_usec"));
  use.throttled = seconds(value_in(texts.cpu_stat, "throttled_usec"));
  use.periods = value_in(texts.cpu_stat, "nr_periods");
  use.throttled_periods = value_in(texts.cpu_stat, "nr_throttled");
  const auto first_word = [](std::string_view text) {
    return number(Words(text.substr(0, text.find('\n'))).next());
  };
  use.memory = first_word(texts.memory_current);
  use.memory_limit = first_word(texts.memory_max);  // "max": none
  use.oom_kills = value_in(texts.memory_events, "oom_kill");
  each_line(texts.io_stat, [&](std::string_view line) {  // "8:0 rbytes=1 wbytes=2 ..."
    Words words(line);
    for (auto word = words.next(); !word.empty(); word = words.next()) {
      if (const auto read = value_in(word, "rbytes")) use.read = use.read.value_or(0) + *read;
      if (const auto out = value_in(word, "wbytes")) use.written = use.written.value_or(0) + *out;
    }
  });
  return use;
}

}  // namespace elastrun::system
