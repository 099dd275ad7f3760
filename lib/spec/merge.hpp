// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/host_environment.hpp"
#include "spec/override.hpp"

#include <array>

namespace elastrun::spec {

/// For each option the value that won, and where it comes from. Still text.
class Values {
 public:
  Values();  // all defaults

  const Override& operator[](Opt id) const { return values_[static_cast<std::size_t>(id)]; }
  /// Whether anybody said something about it: not the default and not implied.
  bool is_given(Opt id) const;
  bool is_on(Opt id) const;  // of a flag
  /// Takes the value if its origin is at least as strong as that of the present one.
  void offer(Override value);
  /// Replaces the value whatever its origin.
  void replace(Override value);
  /// As the rules of --standalone do.
  void imply(Opt id, std::string text, std::string source);

 private:
  std::array<Override, kOptions> values_;
};

/// The PET_* variables, and the two of torchelastic that change a default, as overrides. An invalid
/// number is refused as on the command line (exit 2); a flag that is not an integer with Python's
/// ValueError (exit 1). `decided` are the options whose variable does not matter any more.
Answer<std::vector<Override>> read_variables(const HostEnvironment& around, const Values& decided);
/// A warning for each variable PET_* that no option reads, with the nearest name that one does.
std::vector<std::string> unknown_variables(const HostEnvironment& around);

}  // namespace elastrun::spec
