"""How the children of one worker are started: with its modules, its limits and its lane."""

from __future__ import annotations

import os
import sys
from functools import partial

from penstock_workers.children.child import HOOK_TIMEOUT_S, Child, ChildLimits
from penstock_workers.children.child_pool import Start
from penstock_workers.settings import WorkerSettings

MB = 1024 * 1024


def child_starter(settings: WorkerSettings, hook_timeout_s: float = HOOK_TIMEOUT_S) -> Start:
    """``settings`` give the allowed hook modules, the memory limit of a child, and the lane of
    suspected items."""
    options = {
        "worker": os.getpid(),
        "path": list(sys.path),
        "allowed": list(settings.hook_modules),
        "hook_s": hook_timeout_s,
        "lane": settings.lane,
    }
    return partial(Child.start, options, ChildLimits(settings.hook_memory_mb * MB, hook_timeout_s))
