// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

namespace elastrun::goodput {

/// The numbers under which the steps of a job are counted, from those that its scripts tell. They
/// differ where a script counts each epoch from the beginning, though it repeats no work; and
/// where nothing tells at which step it resumed, so that it counts from the beginning. Then it is
/// taken to have resumed where it can have at best, and the steps before that are doubtful. Pure.
class StepNumbers {
 public:
  using Number = std::int64_t;
  /// Workers start: their first step says where they resume.
  void start();
  /// A checkpoint was saved, or loaded if there was no step in this start yet, of a step that is
  /// not known. `last`: of those that are counted.
  void untold(std::optional<Number> last);
  /// Of a step that the job tells, or of its begin. `safe`: the last one that a checkpoint holds;
  /// `stride`: how many steps lie between those that are told.
  Number of_step(Number told, std::optional<Number> last, std::optional<Number> safe,
                 Number stride = 1);
  /// Of a checkpoint.
  Number of_checkpoint(Number told, std::optional<Number> last) const;

  /// Whether the steps up to this one were kept cannot be told.
  std::optional<Number> doubtful() const { return doubtful_; }
  /// The last one that may be in a checkpoint of an untold step.
  std::optional<Number> perhaps_safe() const { return saved_; }
  int untold_saves() const { return saves_; }
  /// How often steps began again in workers that went on.
  int begun_again() const { return begun_again_; }

 private:
  Number first_of_start(Number told, Number last, std::optional<Number> safe);
  void doubt(Number until);

  std::optional<Number> base_;           // the first one that was told, ever
  Number ahead_ = 0, ahead_before_ = 0;  // of what is told; of the epoch before this one
  bool begun_ = false, loaded_ = false;  // in this start
  std::optional<Number> saved_, doubtful_;
  int saves_ = 0, begun_again_ = 0;
};

}  // namespace elastrun::goodput
