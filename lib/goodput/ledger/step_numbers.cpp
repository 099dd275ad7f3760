// SPDX-License-Identifier: Apache-2.0
#include "goodput/ledger/step_numbers.hpp"

#include <algorithm>
#include <utility>

namespace elastrun::goodput {
namespace {

using Number = StepNumbers::Number;

// No job does so many; what is beyond counts as it is told.
constexpr Number kMostCounted = Number{1} << 53;

bool is_far(Number number) {
  return number < -kMostCounted || number > kMostCounted;
}

}  // namespace

void StepNumbers::start() {
  begun_ = loaded_ = false;
}

void StepNumbers::untold(std::optional<Number> last) {
  if (!begun_) {
    loaded_ = true;
    return;
  }
  ++saves_;
  saved_ = std::max(saved_, last);
}

Number StepNumbers::of_step(Number told, std::optional<Number> last, std::optional<Number> safe,
                            Number stride) {
  const bool first = !std::exchange(begun_, true);
  if (!base_) base_ = told;
  // The numbers are a worker's: no sum of them may overflow.
  if (is_far(told) || (last && is_far(*last))) return told;
  if (!last) {  // none is kept
    if (first) ahead_ = ahead_before_ = 0;
    return told + ahead_;
  }
  if (first) return first_of_start(told, *last, safe);
  if (told <= *base_ && told + ahead_ < *last) {
    ahead_before_ = std::exchange(ahead_, std::max(*last, safe.value_or(*last)) + stride - told);
    ++begun_again_;
  }
  return told + ahead_;
}

/// A number above the first one of all was not counted from the beginning: the job knows it.
Number StepNumbers::first_of_start(Number told, Number last, std::optional<Number> safe) {
  // With what was added before, then with nothing: a number that the job itself knows fits one.
  if (told + ahead_ > last + 1) ahead_ = ahead_before_;
  if (told + ahead_ > last + 1) ahead_ = ahead_before_ = 0;
  const Number number = told + ahead_;
  auto kept = !loaded_ ? saved_ : saved_ || safe ? std::max(saved_, safe) : last;
  // Of a job that counts epochs, and of one whose last step was saved, it may be the next epoch.
  const bool epochs = begun_again_ > 0;
  if (epochs || safe == last) kept = std::max(kept, safe);
  if (told <= *base_ && kept >= number) {
    ahead_before_ = std::exchange(ahead_, *kept + 1 - told);
    if (!epochs || kept != safe || safe != last) doubt(*kept);
    return *kept + 1;
  }
  // Of several epochs it may have resumed in any.
  if (begun_again_ > 0 && number <= last && (!safe || number != *safe + 1)) doubt(number - 1);
  return number;
}

void StepNumbers::doubt(Number until) {
  doubtful_ = std::max(doubtful_, std::optional(until));
}

Number StepNumbers::of_checkpoint(Number told, std::optional<Number> last) const {
  if (!last || is_far(told) || is_far(*last)) return told;
  const bool of_epoch_before = told + ahead_ > *last + 1 && begun_again_ > 0;
  return told + (of_epoch_before ? ahead_before_ : ahead_);
}

}  // namespace elastrun::goodput
