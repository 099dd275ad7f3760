// SPDX-License-Identifier: Apache-2.0
#include "net/first_bytes.hpp"

#include "net/frame.hpp"

#include <algorithm>

namespace elastrun::net {

Protocol recognise(std::string_view first_bytes) {
  if (first_bytes.empty()) return Protocol::Undecided;
  const auto first = static_cast<unsigned char>(first_bytes.front());
  // 19-31 are not assigned yet; the store refuses what it does not know, and says so in its own
  // words.
  if (first < 32) return Protocol::Store;
  if (first >= 'A' && first <= 'Z') return Protocol::Http;
  const std::size_t known = std::min(first_bytes.size(), kMagic.size());
  if (first_bytes.substr(0, known) != kMagic.substr(0, known)) return Protocol::Unknown;
  return known == kMagic.size() ? Protocol::Agent : Protocol::Undecided;
}

}  // namespace elastrun::net
