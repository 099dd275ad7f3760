// SPDX-License-Identifier: Apache-2.0
#include "logs/line_splitter.hpp"

#include "core/host.hpp"
#include "core/text.hpp"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

namespace elastrun::logs {
namespace {

// One check for room instead of three: it runs for each line that a worker prints.
void append_line(std::string& out, std::string_view prefix, std::string_view line) {
  const std::size_t before = out.size(), added = prefix.size() + line.size() + 1;
  // resize_and_overwrite allocates what is asked for and no more.
  if (out.capacity() < before + added) out.reserve(2 * (before + added));
  out.resize_and_overwrite(before + added, [before, prefix, line](char* text, std::size_t size) {
    char* end = std::copy(prefix.begin(), prefix.end(), text + before);
    end = std::copy(line.begin(), line.end(), end);
    *end = '\n';
    return size;
  });
}

/// Returns what a terminal would show in the end. A CR before the LF (CRLF) stays.
std::string_view last_state(std::string_view line) {
  // Nearly no line has one, and string_view would look at its bytes one by one.
  if (std::memchr(line.data(), '\r', line.size()) == nullptr) return line;
  const auto end = line.find_last_not_of('\r');
  if (end == std::string_view::npos) return line;
  const auto cr = line.rfind('\r', end);
  return cr == std::string_view::npos ? line : line.substr(cr + 1);
}

}  // namespace

LineSplitter::LineSplitter(std::string prefix, std::size_t longest)
    : prefix_(std::move(prefix)), longest_(longest) {}

void LineSplitter::add_line(std::string_view line, std::string& out, const LineFilter* filter,
                            std::string* matching) const {
  // By the whole line, also by states of a bar that are not shown.
  const bool matches = filter != nullptr && std::ranges::any_of(*filter, [&](const auto& needle) {
                         return line.contains(needle);
                       });
  line = last_state(line);
  append_line(out, prefix_, line);
  if (matches) append_line(*matching, prefix_, line);
}

void LineSplitter::hold(std::string_view bytes, std::string& out, const LineFilter* filter,
                        std::string* matching) {
  // A worker that never writes a LF would fill the agent's memory: a line that is too long is cut
  // into several.
  while (held_.size() + bytes.size() > longest_) {
    const auto room = longest_ - held_.size();
    held_.append(bytes.substr(0, room));
    add_line(held_, out, filter, matching);
    held_.clear();
    bytes.remove_prefix(room);
  }
  held_.append(bytes);
}

void LineSplitter::feed(std::string_view bytes, std::string& out, const LineFilter* filter,
                        std::string* matching) {
  while (!bytes.empty()) {
    const void* end = std::memchr(bytes.data(), '\n', bytes.size());
    if (end == nullptr) {
      hold(bytes, out, filter, matching);
      return;
    }
    const auto size = static_cast<std::size_t>(static_cast<const char*>(end) - bytes.data());
    // Straight from the buffer: nearly all lines are whole in one read, and a copy for each would
    // cost as much as all the rest.
    if (held_.empty() && size <= longest_) {
      add_line(bytes.substr(0, size), out, filter, matching);
    } else {
      hold(bytes.substr(0, size), out, filter, matching);
      add_line(held_, out, filter, matching);
      held_.clear();
    }
    bytes.remove_prefix(size + 1);
  }
}

void LineSplitter::finish(std::string& out, const LineFilter* filter, std::string* matching) {
  if (!held_.empty()) add_line(held_, out, filter, matching);
  held_.clear();
  held_.shrink_to_fit();
}

bool LineSplitter::holds_progress() const {
  // A CR at the very front overwrites nothing: many bars write it before each state.
  return held_.find('\r', 1) != std::string::npos;
}

void LineSplitter::show_progress(std::string& out) {
  const auto last = held_.rfind('\r');
  if (last == std::string::npos || last == 0) return;
  const auto before = held_.rfind('\r', last - 1);
  const auto begin = before == std::string::npos ? 0 : before + 1;
  if (begin < last) {
    add_line(std::string_view(held_).substr(begin, last - begin), out, nullptr, nullptr);
  }
  // The CR stays at the front: it is the sign that more states may follow.
  held_.erase(0, last);
}

std::string line_prefix(std::string_view form, std::string_view role, int rank, int local_rank) {
  if (form.empty()) return fmt::format("[{}{}]:", role, local_rank);
  return fill_template(form, {{"role_name", std::string(role)},
                              {"rank", fmt::to_string(rank)},
                              {"local_rank", fmt::to_string(local_rank)},
                              {"hostname", host_name()}});
}

}  // namespace elastrun::logs
