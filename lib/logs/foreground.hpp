// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

namespace elastrun::logs {

/// True if a person looks at what is written to `fd`: a terminal, and not one whose bytes a
/// notebook (JPY_PARENT_PID of Jupyter) or script(1) keeps.
bool is_interactive(int fd);

/// True if the terminal `fd` is ours to paint on now: it is the controlling one, and its foreground
/// is our process group or that of `guardian` (0: none). A job in the background of a shell shares
/// the terminal with a prompt.
bool is_in_foreground(int fd, pid_t guardian);

}  // namespace elastrun::logs
