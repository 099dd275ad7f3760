# SPDX-License-Identifier: Apache-2.0
"""python -m elastrun ...: the launcher."""
from elastrun.program import main

main()
