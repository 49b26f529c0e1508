"""One batch on the encoder's thread, and what came of it. Errors end here: one that lives holds the tensors of its batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from penstock_workers.failpoints import Failpoints
from penstock_workers.lanes.embed.buckets import TokenIds, Vector
from penstock_workers.lanes.embed.encoder import Encoder, OutOfMemory
from penstock_workers.lanes.engine_life.device_errors import is_lost
from penstock_workers.lanes.engine_life.stall import longest_step_s

PROBE: Final = 1  # a token that most vocabularies have


class Vectors(NamedTuple):
    """One for each text, and the seconds that they took."""

    vectors: Sequence[Vector]
    seconds: float


class Broken(NamedTuple):
    """Why there are none."""

    words: str
    too_large: bool = False  # for the memory that is left
    lost: bool = False  # the encoder hangs, or its device is gone: no text is at fault


class Computing:
    """``stall_s``: a batch that takes longer hangs; None = by its size and the model's."""

    def __init__(
        self, encoder: Encoder, thread: Executor, *, stall_s: float | None = None, failpoints: Failpoints | None = None
    ) -> None:
        self._encoder, self._thread, self._stall_s = encoder, thread, stall_s
        self._failpoints = failpoints or Failpoints()

    async def batch(self, ids: Sequence[TokenIds]) -> Vectors | Broken:
        limit_s = self._longest_s(ids)
        try:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._compute, ids)
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            return Broken(f"the encoder hangs: no end of a batch after {limit_s:g} s (embed.stall_s)", lost=True)

    async def fails_at_everything(self) -> str | None:
        """Whether it cannot compute a single token, either; then in words."""
        came = await self.batch([[PROBE if self._encoder.vocabulary > PROBE else 0]])
        return None if isinstance(came, Vectors) else f"the encoder fails at everything, one token too: {came.words}"

    def end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _longest_s(self, ids: Sequence[TokenIds]) -> float:
        if self._stall_s is not None:
            return self._stall_s
        padded = max(map(len, ids)) * len(ids)
        return longest_step_s(self._encoder.parameters, padded, on_cpu=self._encoder.on_cpu)

    def _compute(self, ids: Sequence[TokenIds]) -> Vectors | Broken:
        """The encoder's thread."""
        started = time.perf_counter()
        try:
            self._failpoints.hit("engine")
            vectors = self._encoder.encode(ids)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if is_lost(error):
                return Broken(f"the encoder's device is lost: {words}", lost=True)
            return Broken(words, too_large=isinstance(error, OutOfMemory))
        if len(vectors) != len(ids):
            return Broken(f"the encoder gave {len(vectors)} vectors for {len(ids)} texts")
        return Vectors(vectors, time.perf_counter() - started)
