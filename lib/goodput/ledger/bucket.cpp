// SPDX-License-Identifier: Apache-2.0

#include "goodput/ledger/bucket.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace elastrun::goodput {
namespace {

using Name = std::pair<std::string_view, Bucket>;
constexpr std::array<Name, 25> kNames = {{{"train", Bucket::Running},
                                          {"training", Bucket::Running},
                                          {"eval", Bucket::Evaluation},
                                          {"evaluate", Bucket::Evaluation},
                                          {"evaluation", Bucket::Evaluation},
                                          {"eval_step", Bucket::Evaluation},
                                          {"val", Bucket::Evaluation},
                                          {"validate", Bucket::Evaluation},
                                          {"validation", Bucket::Evaluation},
                                          {"test", Bucket::Evaluation},
                                          {"testing", Bucket::Evaluation},
                                          {"save", Bucket::Checkpoint},
                                          {"load", Bucket::Checkpoint},
                                          {"restore", Bucket::Checkpoint},
                                          {"checkpoint", Bucket::Checkpoint},
                                          {"checkpoint_save", Bucket::Checkpoint},
                                          {"checkpoint_restore", Bucket::Checkpoint},
                                          {"data", Bucket::DataLoading},
                                          {"data_loading", Bucket::DataLoading},
                                          {"init", Bucket::Initialization},
                                          {"device_init", Bucket::Initialization},
                                          {"setup", Bucket::Preparation},
                                          {"preparation", Bucket::Preparation},
                                          {"compile", Bucket::Preparation},
                                          {"unexplained", Bucket::Unexplained}}};

}  // namespace

Bucket bucket_of_phase(std::string_view name) {
  const auto small = to_lower(name.substr(0, 32));
  const auto* found = std::ranges::find(kNames, std::string_view(small), &Name::first);
  return found == kNames.end() ? Bucket::Custom : found->second;
}

std::optional<bool> says_loading(std::string_view name) {
  const auto small = to_lower(name.substr(0, 32));
  if (small == "load" || small == "restore" || small == "checkpoint_restore") return true;
  if (small == "save" || small == "checkpoint_save") return false;
  return std::nullopt;
}

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
