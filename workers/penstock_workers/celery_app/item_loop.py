"""The event loop that a worker's items run on, and how often the cycle collector runs on it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

# Items are freed with their last reference (tests/unit/test_workers_garbage.py), so the collector
# only frees what libraries leave behind. Python's 700 new objects are what a hundred items hold,
# and each
# of those walks visits all that are in flight. So many new objects are a few tens of MB at most
# before a walk.
NEW_OBJECTS, YOUNG_WALKS, MIDDLE_WALKS = 50_000, 20, 50


def loop_factory(uvloop: bool) -> LoopFactory | None:
    """uvloop's, where it is wanted and installed; None for asyncio's own."""
    if not uvloop:
        return None
    try:
        import uvloop as fast  # on demand: the extra `worker` brings it where it has a wheel
    except ImportError:
        return None
    return fast.new_event_loop


def spare_the_collector() -> None:
    """Exclude what is in memory by now, code above all, from collections: it lives as long as the
    process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG_WALKS, MIDDLE_WALKS)
