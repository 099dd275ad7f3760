// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace elastrun::ctl {

/// The first word to the program elastrun that makes it this program, where one file is both: in a
/// wheel, which has elastrunctl as a script (elastrunctl.sh).
constexpr const char* kAsElastrunctl = "--as-elastrunctl";

/// All of the program; what main() returns.
int run_program(int argc, char** argv);

}  // namespace elastrun::ctl
