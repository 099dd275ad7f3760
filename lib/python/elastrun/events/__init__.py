# SPDX-License-Identifier: Apache-2.0
"""Events with the interface of torch.distributed.elastic.events: see elastrun.events.api."""
from __future__ import annotations

from elastrun.events.api import (Event, EventHandler, EventMetadataValue, EventSource, NodeState,
                                 NullEventHandler, RdzvEvent, configure,
                                 construct_and_record_rdzv_event, get_logging_handler, record,
                                 record_rdzv_event)

__all__ = ["Event", "EventHandler", "EventMetadataValue", "EventSource", "NodeState",
           "NullEventHandler", "RdzvEvent", "configure", "construct_and_record_rdzv_event",
           "get_logging_handler", "record", "record_rdzv_event"]
