# SPDX-License-Identifier: Apache-2.0
# Where `cmake --install` puts things.
include(GNUInstallDirs)
