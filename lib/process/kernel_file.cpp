// SPDX-License-Identifier: Apache-2.0
#include "process/kernel_file.hpp"

#include "core/unique_fd.hpp"

#include <array>
#include <fcntl.h>
#include <unistd.h>

namespace elastrun::process {

std::string read_kernel_file(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 4096> piece{};
  while (file) {
    const auto size = ::read(file.get(), piece.data(), piece.size());
    if (size <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace elastrun::process
