"""Share what is learned about costs: one hash per quota, so that a new process does not start from
a guess."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Hashable
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, Final

from redis.exceptions import RedisError

from penstock_ratelimit.estimates.estimator import FADED, MEMORY, Estimator, Sketch
from penstock_ratelimit.store.quota_hash import CALL_TIMEOUT_S, ScriptClient

log = logging.getLogger("penstock.ratelimit")

FLUSH_S: Final = 2.0
"""How often the owner should flush: an estimate that is two seconds old misses few answers."""
SHARED_MEMORY: Final = 5 * MEMORY
"""Observations that count together: enough that one process's last twenty do not push out those of
all others."""
KEYS_PER_FLUSH: Final = 16
"""Keys in one call, so that it holds Redis for two milliseconds at most; the others go with the
next flush."""
MAX_FIELDS: Final = 1024
"""Keys remembered per quota: less than a megabyte, as a sketch is half a kilobyte."""
MAX_FIELD_CHARS: Final = 200
"""A longer key is stored by its hash."""
TTL_S: Final = 7 * 86_400
"""Forgotten after a week in which nothing was learned."""


class Learned:
    """The shared part of an ``Estimator``.

    Its owner calls ``flush`` in the background, every ``FLUSH_S`` or so.

    While Redis is down nothing is shared, and observations are kept for the next flush.
    """

    def __init__(
        self,
        client: ScriptClient,
        quota_id: str,
        estimator: Estimator,
        *,
        prefix: str = "penstock:",
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self.key = f"{prefix}{{q:{quota_id}}}:l"
        self._estimator, self._clock_us = estimator, clock_us
        self._learn = client.register_script(_script())

    async def flush(self) -> None:
        """Share what was observed here and read what others observed, in one call; none when there
        is nothing to share."""
        taken = self._estimator.take(KEYS_PER_FLUSH)
        if not taken:
            return
        try:
            sums = await self._call(taken)
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            self._estimator.put_back(taken)
            log.debug("%s: not shared (%s); kept for the next time", self.key, error)
            return
        except BaseException:
            self._estimator.put_back(taken)
            raise
        for key, text in zip(taken, sums, strict=True):
            shared = read_sketch(text)
            if shared is not None:
                self._estimator.adopt(key, shared)

    async def _call(self, taken: dict[Hashable, Sketch]) -> list[bytes | str]:
        now = "" if self._clock_us is None else self._clock_us()
        args: list[Any] = [now, TTL_S, MAX_FIELDS, SHARED_MEMORY, FADED]
        for key, sketch in taken.items():
            args += (field_name(key), write_sketch(sketch))
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reply: list[bytes | str] = await self._learn(keys=[self.key], args=args)
        return reply


def field_name(key: Hashable) -> str:
    """A key as the text that every process writes for it."""
    text = key if isinstance(key, str) else repr(key)
    return (
        text
        if len(text) <= MAX_FIELD_CHARS
        else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    )


def write_sketch(sketch: Sketch) -> str:
    """As ``scripts/learn.lua`` reads it; nothing at all for an empty one."""
    if not sketch.weight and not sketch.bins:
        return ""
    return json.dumps([0, sketch.ratio, sketch.weight, *chain.from_iterable(sketch.bins.items())])


def read_sketch(text: bytes | str) -> Sketch | None:
    """What ``scripts/learn.lua`` returned; None for an unknown key."""
    if not text:
        return None
    _, ratio, weight, *pairs = json.loads(text)
    return Sketch(ratio, weight, dict(zip(pairs[::2], pairs[1::2], strict=True)))


@cache
def _script() -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    return (folder / "clock.lua").read_text("utf-8") + (folder / "learn.lua").read_text("utf-8")
