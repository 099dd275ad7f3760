# SPDX-License-Identifier: Apache-2.0
"""The parts of `conform`, the differential test kit for torchrun-like launchers."""
