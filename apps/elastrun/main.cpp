// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

int main(int argc, char** argv) {
  return elastrun::launch(argc, argv);
}
