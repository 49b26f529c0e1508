"""How long each part of a worker's end may take, from the moment that the drain is over.

Their sums have to fit what kills it.

The drain is over at D. By D + GRACE_S the last outcomes are stored, and all other items are given
back; the thread of the leases writes that to Redis while the item engine stops, so those two run
side by side.
"""

from __future__ import annotations

from typing import Final

GRACE_S: Final = 2.0  # for the engine's last group commit
# for a Redis that answers to learn what was given back: milliseconds for all items of a worker
RETURN_S: Final = 3.0
STOP_TIMEOUT_S: Final = (
    7.0  # for closing connections, and an engine with its processes; the thread is a daemon
)
FLUSH_TIMEOUT_S: Final = (
    5.0  # for a Redis that does not answer; messages whose write fails return when their lease ends
)
LAST_S: Final = (
    1.0  # of FLUSH_TIMEOUT_S, for what the engine said as it stopped, however long that took
)

FINISH_S: Final = GRACE_S + RETURN_S
"""Of a notice, kept for what follows the drain. An engine's processes may end after that: they go
with the machine."""

END_S: Final = GRACE_S + STOP_TIMEOUT_S + LAST_S
"""From the end of the drain to the end of the process, at most. Who kills a worker that hosts an
engine has to wait for it."""
