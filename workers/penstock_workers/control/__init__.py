"""The control loop, which feeds jobs into the queue and finishes them.

It also returns due retries to the queue and publishes lost documents again. Any number of processes
may run one; each feed has one leader at a time, held by a fenced lease in SQL.
"""

from __future__ import annotations

from penstock_workers.control.loop import Control, start_control
from penstock_workers.control.standalone import ControlEngine

__all__ = ["Control", "ControlEngine", "start_control"]
