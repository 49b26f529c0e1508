"""What is free on the disk that `penstock serve` keeps everything on, and what it is likely to
need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock_cli.disk import ENOUGH_BYTES, free_bytes, megabytes
from penstock_cli.errors import UsageProblem

COPIES: Final = 3
"""Of an uploaded file, until its batch is done: the file, its answers in the ledger, the output
file; about as large each."""
KEPT_FREE: Final = 128 * 1024 * 1024
"""That uploads leave free."""


def room_line(
    state: Path, upload_bytes: int, free: Callable[[Path], int | None] = free_bytes
) -> str | None:
    """What to say at the start; None where the system does not tell what is free.

    Raises UsageProblem for too little."""
    found = free(state)
    if found is None:
        return None
    if found < ENOUGH_BYTES:
        raise UsageProblem(
            f"--state {state}: its disk has {megabytes(found)} left, and jobs wait below "
            f"{megabytes(ENOUGH_BYTES)}. Free some space, or name a folder on another disk."
        )
    wanted = COPIES * upload_bytes + KEPT_FREE
    said = (
        f"the disk of {state} has {megabytes(found)} left; the largest upload "
        f"({megabytes(upload_bytes)}) takes about {megabytes(wanted)} until its batch is done"
    )
    return said if found >= wanted else f"{said}: smaller ones only, until there is more room"
