"""Runs one request through a lane as a worker would, for `penstock doctor --lane … --try`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Final

from penstock_workers.item.answer import Answer
from penstock_workers.item.lane import Lane, Request
from penstock_workers.lanes.row import LaneFinding, LaneRow
from penstock_workers.settings import DEFAULT_PROVIDER, WorkerSettings

__all__ = ["one_run"]

START_MAX_S: Final = 1_800.0
"""As long as a pod may take to start: weights are read, kernels are compiled."""
RUN_MAX_S: Final = 120.0
SHOWN_CHARS: Final = 300


def one_run(
    row: LaneRow[Lane], settings: WorkerSettings, tries: Sequence[tuple[str, bytes]]
) -> Iterator[LaneFinding]:
    """Start the lane, send requests (endpoint and body) until one is answered, and end it."""
    try:
        yield asyncio.run(_run(row.make(settings), tries))
    # engines raise what they like; whatever it is, a worker would not start either
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip()[:SHOWN_CHARS]
        yield LaneFinding(
            False,
            f"a run of one token failed: {said}",
            "a worker with these settings would not start",
        )


async def _run(lane: Lane, tries: Sequence[tuple[str, bytes]]) -> LaneFinding:
    began = time.monotonic()
    try:
        async with asyncio.timeout(START_MAX_S):
            await lane.start()
        loaded_s = time.monotonic() - began
        said = ""
        for endpoint, body in tries:
            request = Request("doctor", DEFAULT_PROVIDER, endpoint, body, RUN_MAX_S)
            prepared = await lane.prepare(request)
            tried = prepared.refused or await lane.infer(prepared)
            if isinstance(tried, Answer) and tried.status == 200:
                seen = (
                    f"a run of one token went well: loaded in {loaded_s:.1f} s, answered in "
                    f"{tried.latency_ms} ms"
                )
                return LaneFinding(True, seen)
            said = str(tried.body if isinstance(tried, Answer) else tried.detail)[:SHOWN_CHARS]
        return LaneFinding(
            False,
            f"the model was loaded in {loaded_s:.1f} s, and refuses a run of one token: {said}",
        )
    finally:
        await lane.close()
