# SPDX-License-Identifier: Apache-2.0
"""python -m elastrun ...: the launcher."""
from elastrun.launcher import main

main()
