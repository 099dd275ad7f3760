// SPDX-License-Identifier: Apache-2.0
// The same for the protocol of torch 1.13, which has no opening.
#include "fuzz/store_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace elastrun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  static const std::string kCountKeys =
      "\x06";  // a whole first request: now it is the old protocol
  const bool opened = bytes.empty() || bytes.front() >= 0;
  fuzz::check_store(store::Protocol::Old, opened ? kCountKeys : "", bytes);
  return 0;
}
