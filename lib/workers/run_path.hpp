// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace elastrun::workers {

/// A Python program for `python -c`: its first argument is a script, the rest its arguments. Runs
/// the script with runpy as `__main__`; an exception is written to TORCHELASTIC_ERROR_FILE in the
/// form of torch's `@record` and raised again. When the script has returned, it waits until those
/// of all workers of this node have (Channel::release). Standard library only.
extern const std::string_view kRunPathProgram;

}  // namespace elastrun::workers
