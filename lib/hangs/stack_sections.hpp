// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// Takes the output of faulthandler, py-spy and system::thread_lines apart. All pure; a line that
/// is not understood belongs to the section before it.
namespace elastrun::hangs {

/// One tool's report on a thread, or on several that do the same.
struct Section {
  enum class Kind { Faulthandler, PySpy, Kernel, Unknown } kind = Kind::Unknown;
  std::string header;
  std::vector<std::string> lines;
};
std::vector<Section> sections_of(const std::vector<std::string>& lines);

/// The index of the main thread by Python, else by the kernel; `sections.size()`: none.
std::size_t main_section(const std::vector<Section>& sections);

/// One call in Python.
struct Frame {
  std::string file, function;
  int line = 0;
};
/// Innermost first. Empty for a section of the kernel.
std::vector<Frame> frames_of(const Section& section);

/// Drops what the kernel tells of threads, if the process has Python frames and no thread of it
/// hangs in the kernel.
std::vector<std::string> without_kernel(const std::vector<std::string>& lines);

}  // namespace elastrun::hangs
