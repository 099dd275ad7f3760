// SPDX-License-Identifier: Apache-2.0
// Bytes from a hostile client of the workers' store, after a right opening in most cases.
#include "fuzz/store_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace elastrun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const std::string kOpening("\0\xCE\xF7\x85\x3C", 5);
  const bool opened = bytes.empty() || bytes.front() >= 0;
  fuzz::check_store(store::Protocol::Current, opened ? kOpening : "", bytes);
  return 0;
}
