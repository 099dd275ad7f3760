// SPDX-License-Identifier: Apache-2.0
#include "elastrunctl/command_line.hpp"

int main(int argc, char** argv) {
  return elastrun::ctl::run_program(argc, argv);
}
