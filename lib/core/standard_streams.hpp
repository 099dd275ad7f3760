// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun {

/// Opens /dev/null where a program was started without one of its standard streams: what is opened
/// later must not become 0, 1 or 2, where others would write into it, or be handed it.
void open_standard_streams();

}  // namespace elastrun
