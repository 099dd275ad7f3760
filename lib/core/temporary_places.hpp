// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace elastrun {

/// Folders for temporary files, absolute, the best first, as Python's tempfile has them: what
/// TMPDIR, TEMP and TMP name, /tmp, /var/tmp, /usr/tmp, the current directory. None is looked at:
/// take the first that can be used. `memory`: one to be taken rather than a disk where the user
/// has named none; empty: there is none.
std::vector<std::string> temporary_places(const std::string& memory = {});

/// Folders for a socket, the best first: what TMPDIR names, /tmp, /dev/shm.
std::vector<std::string> socket_places();

/// True if the user has named one.
bool names_temporary_place();

}  // namespace elastrun
