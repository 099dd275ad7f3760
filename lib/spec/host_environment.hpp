// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace elastrun::spec {

/// Devices of one type, as torch calls it.
struct Accelerators {
  std::string type;
  int count = 0;
};

/// What `resolve` may ask the machine. All of it can be faked; nothing is asked unless needed.
struct HostEnvironment {
  /// A variable of the environment, or nothing if it is unset.
  std::function<std::optional<std::string>(const std::string& name)> variable;
  /// The names of all variables that begin with PET_, sorted.
  std::function<std::vector<std::string>()> pet_variables = [] {
    return std::vector<std::string>();
  };
  std::function<Result<std::string>(const std::string& path)> read_file;
  /// Whether the path names a file at all, and one that may be executed.
  std::function<bool(const std::string& path)> exists;
  std::function<bool(const std::string& path)> is_executable;
  /// The start of a file up to its first line end, which is included; 256 bytes at most, as the
  /// kernel reads of a script. Empty if the file is missing.
  std::function<std::string(const std::string& path)> first_line;
  /// CPUs that this process may run on.
  std::function<int()> count_cpus;
  /// Devices that a worker would see; 0 where there are none.
  std::function<int()> count_gpus;
  std::function<int()> count_xpus;
  /// "nvlink-CLUSTER-CLIQUE" of the GPUs; empty: there is none, or the driver does not tell.
  std::function<std::string()> nvlink_domain = [] { return std::string(); };
  std::function<std::string()> make_uuid;

  /// The file of this program, with links resolved; empty if that is not known.
  std::function<std::string()> own_program;

  /// How this program was called, argv[0]: links are not resolved. Empty if that is not known.
  std::string called_as;
  /// Names that a custom launcher has registered, beside the built-in ones.
  std::vector<std::string> rdzv_backends, event_handlers, logs_specs;

  /// Whether there may be accelerators of other makers, and what torch, which takes seconds to
  /// import, says of one by its name, or of the current one for "auto". Without it none is known.
  std::function<bool()> has_other_accelerators = [] { return false; };
  std::function<Result<Accelerators>(const std::string& interpreter, const std::string& name)>
      ask_torch{};
};

/// The real ones, but for devices: those are counted by the caller, who has the library for it.
HostEnvironment system_host_environment(std::function<int()> count_gpus,
                                        std::function<int()> count_xpus);

}  // namespace elastrun::spec
