"""How much memory glibc keeps for threads that no longer need it.

glibc gives each thread an arena of its own, up to eight a core, and returns little of one to the
system. The batch lane reads and writes documents by the thousand in whichever thread is free, so
that each arena grows to what the largest page took. With few of them the threads share what is
freed. It is said to glibc and not by MALLOC_ARENA_MAX, so that it holds however a worker is
started, and so that what a worker starts, as the processes of hooks, keeps what is usual.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from penstock_workers.settings import has_arena_limit

ARENAS: Final = 2
M_ARENA_MAX: Final = -8  # glibc's malloc.h


def limit_arenas() -> bool:
    """Whether it was done: not on another C library, nor where the environment has a limit already.

    Arenas that exist stay, so it comes before the threads.
    """
    if has_arena_limit() or not _is_glibc():
        return False
    return bool(ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS))


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # a system that does not know the name: musl, macOS
        return False
