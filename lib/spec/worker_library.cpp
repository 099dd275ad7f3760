// SPDX-License-Identifier: Apache-2.0
#include "spec/worker_library.hpp"

#include <array>
#include <filesystem>
#include <fmt/format.h>

namespace elastrun::spec {
namespace {

constexpr std::string_view kVariable = "PYTHONPATH";
// Below the folder of the program. Never site-packages itself: a folder of PYTHONPATH comes before
// those of the worker's own Python, and would bring other packages along.
constexpr std::array<std::string_view, 2> kPlaces = {"../share/elastrun/python",
                                                     "../../../lib/python"};

/// Empty if it is in none of the places, which are in `tried` then.
std::string find_package(const HostEnvironment& around, std::string& tried) {
  const std::filesystem::path folder = std::filesystem::path(around.own_program()).parent_path();
  for (const auto place : kPlaces) {
    const std::string path = (folder / place).lexically_normal().string();
    if (around.exists(path + "/elastrun/channel.py")) return path;
    tried += (tried.empty() ? "" : " and ") + path;
  }
  return {};
}

}  // namespace

void find_fork_server(JobSpec& job, const HostEnvironment& around) {
  std::string tried;
  const auto package = find_package(around, tried);
  if (!package.empty()) job.fork_server = package + "/elastrun/forkserver.py";
}

std::optional<Refusal> add_worker_library(JobSpec& job, const HostEnvironment& around) {
  const bool hooks = job.goodput == Goodput::Auto;
  std::string tried;
  const auto found = find_package(around, tried);
  if (found.empty()) {
    return Refusal{fmt::format("{}: the Python package elastrun is not beside this program",
                               hooks ? "--goodput auto" : "--worker-lib"),
                   2, false,
                   fmt::format("looked in {}; install it with cmake --install or pip, or leave the "
                               "option away and set PYTHONPATH",
                               tried)};
  }
  // Last: what the user has there is found first.
  auto& variable = job.worker_env[std::string(kVariable)];
  if (variable.empty()) variable = around.variable(std::string(kVariable)).value_or("");
  variable += (variable.empty() ? "" : ":") + found;
  // First: the sitecustomize there, which calls the one that it hides.
  if (hooks) variable = found + "/elastrun/start:" + variable;
  job.worker_lib = true;
  return std::nullopt;
}

}  // namespace elastrun::spec
