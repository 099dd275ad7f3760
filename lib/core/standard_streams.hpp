// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun {

/// Opens /dev/null where a program was started without one of its standard streams: what is opened
/// later must not become 0, 1 or 2, where others would write into it, or be handed it.
void open_standard_streams();

/// Closes `first` and all descriptors above it. System calls alone: a child may do it before
/// execve(2) in its parent's memory.
void close_descriptors_from(int first);

}  // namespace elastrun
