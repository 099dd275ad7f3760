// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/bucket.hpp"

namespace elastrun::goodput {

std::string_view bucket_name(Bucket bucket) {
  constexpr std::string_view kNames[kBuckets] = {
      "startup", "rendezvous", "running",    "productive",  "lost",        "checkpoint",
      "restart", "stopping",   "queued",     "device_init", "preparation", "data_loading",
      "custom",  "hang",       "evaluation", "stalled",     "unexplained"};
  return kNames[static_cast<std::size_t>(bucket)];
}

std::string_view badput_source(Bucket bucket, bool steps_known) {
  switch (bucket) {
    case Bucket::Running:
      return steps_known ? "PROGRAM_STARTUP" : "OTHER";
    case Bucket::Lost:
      return "WASTED_PROGRESS";
    case Bucket::Checkpoint:
      return "CHECKPOINT_SAVE";
    case Bucket::Restart:
    case Bucket::Queued:
      return "INFRASTRUCTURE_RECOVERY";
    case Bucket::Initialization:
      return "ACCELERATOR_INITIALIZATION";
    case Bucket::Preparation:
      return "TRAINING_PREP";
    case Bucket::DataLoading:
      return "DATA_LOADING_SYNC";
    case Bucket::Custom:
      return "CUSTOM_BADPUT_EVENTS";
    // The reference's example of a custom event.
    case Bucket::Evaluation:
      return "CUSTOM_BADPUT_EVENTS.EVALUATION";
    case Bucket::Startup:
    case Bucket::Rendezvous:
    case Bucket::Productive:
    case Bucket::Stopping:
    case Bucket::Hang:
    case Bucket::Stalled:
    case Bucket::Unexplained:
      break;
  }
  return "OTHER";
}

}  // namespace elastrun::goodput
