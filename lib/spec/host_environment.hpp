// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/error.hpp"
#include "core/file_io.hpp"
#include "core/text.hpp"

#include <cstddef>
#include <limits>
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

/// What `resolve` may ask the machine; nothing is asked unless needed. A program with the libraries
/// for devices counts those, and tests give all answers themselves.
class HostEnvironment {
 public:
  virtual ~HostEnvironment() = default;
  /// A variable of the environment, or nothing if it is unset.
  virtual std::optional<std::string> variable(const std::string& name) const;
  /// The names of all variables that begin with PET_, sorted.
  virtual std::vector<std::string> pet_variables() const;
  virtual Result<std::string> read_file(
      const std::string& path, std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    return elastrun::read_file(path, most);
  }
  /// Whether the path names a file at all, and one that may be executed.
  virtual bool exists(const std::string& path) const;
  virtual bool is_executable(const std::string& path) const;
  /// CPUs that this process may run on.
  virtual int count_cpus() const;
  /// Devices that a worker would see; 0 where there are none.
  virtual int count_gpus() const { return 0; }
  virtual int count_xpus() const { return 0; }
  /// "nvlink-CLUSTER-CLIQUE" of the GPUs; empty: there is none, or the driver does not tell.
  virtual std::string nvlink_domain() const { return {}; }
  virtual std::string make_uuid() const { return random_uuid(); }
  /// The file of this program, with links resolved; empty if that is not known.
  virtual std::string own_program() const;
  /// Whether there may be accelerators of other makers, and what torch, which takes seconds to
  /// import, says of one by its name, or of the current one for "auto". Fails with an empty text
  /// where torch is not asked.
  virtual bool has_other_accelerators() const { return false; }
  virtual Result<Accelerators> ask_torch(const std::string& /*interpreter*/,
                                         const std::string& /*name*/) const {
    return fail(Code::Usage, "");
  }

  /// How this program was called, argv[0]: links are not resolved. Empty if that is not known.
  std::string called_as{};
  /// Names that a custom launcher has registered, beside the built-in ones.
  std::vector<std::string> rdzv_backends{}, event_handlers{}, logs_specs{};
};

}  // namespace elastrun::spec
