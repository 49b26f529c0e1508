"""Which calls a child is running at this moment, in shared memory that outlives it: they show which
call ended the child.

One slot is for the child's event loop, written around every step of a task; the others are for
threads with plain hooks.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

LOOP: Final = 0
SLOTS: Final = (
    32  # the loop, four threads at work, and threads that hang until their child is ended
)
_SLOT: Final = struct.Struct("QQ")  # number of the call (0: none), steps made so far
SIZE: Final = SLOTS * _SLOT.size


def new_file() -> int:
    """A file descriptor to share with one child.

    The file has no name and is deleted with its last descriptor."""
    with tempfile.TemporaryFile() as file:
        file.truncate(SIZE)
        return os.dup(file.fileno())


class RunningCalls:
    """Written by one child, read by its worker. Takes over ``fd`` and closes it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        os.close(fd)
        self._steps = [0] * SLOTS
        self._free = deque(range(1, SLOTS))

    def enter(self, slot: int, number: int) -> None:
        self._steps[slot] += 1
        _SLOT.pack_into(self._map, slot * _SLOT.size, number, self._steps[slot])

    def leave(self, slot: int) -> None:
        _SLOT.pack_into(self._map, slot * _SLOT.size, 0, self._steps[slot])

    @contextmanager
    def in_thread(self, number: int) -> Iterator[None]:
        """Record a call while its thread runs it.

        With more threads than slots the last ones are not recorded."""
        slot = None
        with suppress(IndexError):
            slot = self._free.popleft()
            self.enter(slot, number)
        try:
            yield
        finally:
            if slot is not None:
                self.leave(slot)
                self._free.append(slot)

    # -- the worker --------------------------------------------------------------------------------

    def running(self) -> set[int]:
        """Numbers of the calls that run, or ran when the child died."""
        return {number for number, _ in _SLOT.iter_unpack(self._map[:SIZE]) if number}

    def on_loop(self) -> tuple[int, int]:
        """(number of the call that has the loop, 0 for none; the step that it makes)."""
        number, step = _SLOT.unpack_from(self._map, LOOP)
        return number, step

    def close(self) -> None:
        self._map.close()
