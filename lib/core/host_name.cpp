// SPDX-License-Identifier: Apache-2.0
#include "core/host_name.hpp"

#include <array>
#include <unistd.h>

namespace elastrun {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace elastrun
