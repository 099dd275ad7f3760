// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun::ctl {

/// Reads the words, runs the subcommand they name, and gives its exit status. Help and version are
/// printed on stdout with status 0; mistakes on stderr, with the word that is wrong, with status 2.
int run_command(int argc, char** argv);

}  // namespace elastrun::ctl
