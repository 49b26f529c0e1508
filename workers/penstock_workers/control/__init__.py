"""The control loop: feeds jobs into the queue, returns due retries to it, publishes lost documents
again, and finishes jobs.

Any number of processes may run one; each feed has one leader at a time, held by a fenced lease in
SQL.
"""

from __future__ import annotations

from penstock_workers.control.loop import Control, start_control
from penstock_workers.control.standalone import ControlEngine

__all__ = ["Control", "ControlEngine", "start_control"]
