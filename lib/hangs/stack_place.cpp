// SPDX-License-Identifier: Apache-2.0
#include "core/text.hpp"
#include "hangs/stack_sections.hpp"
#include "hangs/stacks.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace elastrun::hangs {
namespace {

using namespace std::string_view_literals;

// Functions in which a process waits for others, as PyTorch, its stores and Python call them.
constexpr std::array kWaits{"all_gather"sv,
                            "all_reduce"sv,
                            "all_to_all"sv,
                            "backward"sv,
                            "barrier"sv,
                            "broadcast"sv,
                            "gather"sv,
                            "irecv"sv,
                            "isend"sv,
                            "monitored_barrier"sv,
                            "recv"sv,
                            "reduce"sv,
                            "scatter"sv,
                            "send"sv,
                            "synchronize"sv,
                            "wait"sv,
                            "wait_tensor"sv,
                            "rendezvous"sv,
                            "init_process_group"sv,
                            "destroy_process_group"sv,
                            "new_group"sv};
// What stands between a user's line and what it has called.
constexpr std::array kBetween{"wrapper"sv,          "inner"sv,      "_fn"sv,
                              "decorate_context"sv, "_call_impl"sv, "_wrapped_call_impl"sv,
                              "__call__"sv,         "__next__"sv,   "__iter__"sv,
                              "__enter__"sv,        "__exit__"sv};

/// all_gather_into_tensor, reduce_scatter_tensor, broadcast_object_list, ...
bool is_wait(std::string_view function) {
  return std::ranges::any_of(kWaits, [&](std::string_view name) {
    // Not of these two, with which functions of users begin as well.
    return function == name || (function.starts_with(name) && function[name.size()] == '_' &&
                                name != "wait"sv && name != "send"sv);
  });
}

bool is_library(std::string_view file) {
  return file.contains("/site-packages/") || file.contains("/dist-packages/") ||
         file.contains("/lib/python3") || file.starts_with("<frozen");
}

std::string line_of(const Frame& frame) {
  const auto slash = frame.file.rfind('/');
  return fmt::format(
      "{}:{}", slash == std::string::npos ? frame.file : frame.file.substr(slash + 1), frame.line);
}

/// Without the folder, which may be another one on each node.
std::string key_of(const Frame& frame) {
  return line_of(frame) + ' ' + frame.function;
}

/// The call that the user's frame at `user` has made, as its name tells most.
std::string call_below(const std::vector<Frame>& frames, std::size_t user) {
  for (std::size_t i = user; i-- > 0;) {
    if (is_wait(frames[i].function)) return frames[i].function;
  }
  for (std::size_t i = user; i-- > 0;) {
    if (std::ranges::find(kBetween, frames[i].function) == kBetween.end()) {
      return frames[i].function;
    }
  }
  return frames[user < frames.size() ? user : 0].function;
}

Place python_place(const std::vector<Frame>& frames) {
  const auto user = static_cast<std::size_t>(
      std::ranges::find_if(frames, [](const Frame& frame) { return !is_library(frame.file); }) -
      frames.begin());
  const auto& stands = frames[user < frames.size() ? user : 0];
  Place place{call_below(frames, user), line_of(stands), false, {}};
  place.waits = is_wait(place.what);
  // A trainer that waits for its DataLoader stands in a queue or a pipe, whose name tells nothing.
  const bool loads = std::ranges::any_of(
      frames, [](const Frame& frame) { return frame.file.contains("torch/utils/data/"); });
  if (loads && !place.waits) place.what = "DataLoader";
  if (place.what == "<module>") place.what.clear();
  place.key.push_back(place.what);
  for (std::size_t i = user < frames.size() ? user : 0; i < frames.size(); ++i) {
    place.key.push_back(key_of(frames[i]));
  }
  return place;
}

/// "sleeping, system call futex, waits in futex_wait_queue"
Place kernel_place(const Section& section) {
  const auto colon = section.header.rfind("): ");
  const auto state = colon == std::string::npos ? section.header : section.header.substr(colon + 3);
  Place place{{}, {}, false, {state}};
  for (const auto& line : section.lines) place.key.push_back(line);
  const auto parts = split(state, ',');
  place.what = parts.front();
  for (const auto& part : parts) {
    const std::string_view text = trim(part);
    if (text.starts_with("system call ")) place.what = text;
    if (text.starts_with("waits in ")) place.where = text.substr(9);
  }
  return place;
}

}  // namespace

Place place_of(const std::vector<std::string>& lines) {
  const auto sections = sections_of(lines);
  if (sections.empty()) return {};
  const auto& section = sections.front();
  if (section.kind == Section::Kind::Kernel) return kernel_place(section);
  const auto frames = frames_of(section);
  return frames.empty() ? Place{} : python_place(frames);
}

}  // namespace elastrun::hangs
