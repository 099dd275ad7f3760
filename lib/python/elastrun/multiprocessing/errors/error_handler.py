# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.elastic.multiprocessing.errors.error_handler."""
from elastrun.errors import ErrorHandler

__all__ = ["ErrorHandler"]
