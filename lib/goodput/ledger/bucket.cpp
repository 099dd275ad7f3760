// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/bucket.hpp"

namespace elastrun::goodput {

std::string_view bucket_name(Bucket bucket) {
  constexpr std::string_view kNames[kBuckets] = {
      "startup", "rendezvous", "running",    "productive",  "lost",        "checkpoint",
      "restart", "stopping",   "queued",     "device_init", "preparation", "data_loading",
      "custom",  "hang",       "evaluation", "stalled"};
  return kNames[static_cast<std::size_t>(bucket)];
}

}  // namespace elastrun::goodput
