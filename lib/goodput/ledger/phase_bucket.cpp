// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/phase_bucket.hpp"

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

}  // namespace elastrun::goodput
