"""Guess what a request will cost, and learn from what it did cost."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, Final

from redis.exceptions import RedisError

from penstock_ratelimit.store.quota_hash import CALL_TIMEOUT_S, ScriptClient

CHARS_PER_TOKEN: Final = 4.0
"""English prose with the common tokenizers; other languages and code are learned."""
SLOWEST_LEARNING: Final = 0.05
"""Weight of a new observation once warm: about the last twenty count."""
MAX_RATIO: Final = 50.0
"""A learned ratio stays within 1/50 and 50: a provider that reports nonsense must not stop or flood
a quota."""
MAX_KEYS: Final = 4096
"""Keys remembered (job and model, say); the least recently observed is forgotten first."""
DEFAULT_OUTPUT_TOKENS: Final = 256
"""Output expected before anything was observed: a paragraph or two."""
OUTPUT_QUANTILE: Final = 0.75
"""Of the outputs observed, so many are no longer than the estimate."""
MAX_OUTPUT_TOKENS: Final = 1e7
"""A longer answer counts as this long: no model writes it."""
MAX_CHARS: Final = 10**12
"""A longer prompt counts as this long: no model takes it."""

MEMORY: Final = 1.0 / SLOWEST_LEARNING
"""Observations that count: older ones fade, so that each new one weighs max(0.05, 1/n)."""
GROWTH: Final = 1.2
"""Outputs are counted in bins that grow by a fifth: an estimate is within 9 % of the output it
stands for."""
FADED: Final = 0.01
"""A bin with less than a hundredth of an observation is forgotten. 89 bins reach up to
``MAX_OUTPUT_TOKENS``."""


@dataclass(slots=True)
class Sketch:
    """The knowledge of one key, small and mergeable.

    Two of them added are what one observer had seen.

    The outputs are a histogram with logarithmic bins, which is what makes quantiles mergeable
    (DDSketch: Masson, Rim and Lee, VLDB 2019), fading like an average with weight max(0.05, 1/n).
    """

    ratio: float = 1.0
    """Mean of tokens per estimated token of the prompt."""
    weight: float = 0.0
    """Observations behind ``ratio``."""
    bins: dict[int, float] = field(default_factory=dict)
    """Bin number -> observations of outputs."""
    outputs: float = field(init=False)
    """Observations behind ``bins``."""

    def __post_init__(self) -> None:
        self.outputs = sum(self.bins.values())

    def merge(self, new: Sketch, memory: float = MEMORY) -> None:
        """Add ``new``.

        What was known fades as far as both together exceed ``memory`` observations."""
        total = _kept(self.weight, new.weight, memory) * self.weight + new.weight
        if total > 0:
            self.ratio += (new.ratio - self.ratio) * new.weight / total
        self.weight = total
        if new.bins:
            part = _kept(self.outputs, new.outputs, memory)
            if part < 1.0:
                self.bins = {
                    number: part * count
                    for number, count in self.bins.items()
                    if part * count > FADED
                }
            for number, count in new.bins.items():
                self.bins[number] = self.bins.get(number, 0.0) + count
            self.outputs = sum(self.bins.values())

    def quantile(self, part: float) -> float:
        """Return the tokens of output that ``part`` of the observations do not exceed."""
        left = part * self.outputs
        number = 0
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left <= 1e-9:  # sums of weights are rounded
                break
        # the value with the least relative error in its bin
        return float(2.0 * GROWTH**number / (GROWTH + 1.0))


def _kept(old: float, new: float, memory: float) -> float:
    """Return the part of the old weight that stays when ``new`` arrives."""
    return 1.0 if old + new <= memory else max(0.0, memory - new) / old if old > 0 else 1.0


class Estimator:
    """Estimates tokens: chars / 4 times a learned ratio, and a learned quantile for the answer.

    Both are learned per key.

    A key is what costs alike: job and model, say. Warms up within a few requests; ``Learned``
    shares it with others. Owned by one task or thread.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Sketch] = OrderedDict()
        # observed, or asked for and unknown, since ``take``
        self._fresh: OrderedDict[Hashable, Sketch] = OrderedDict()

    def estimate_prompt(self, key: Hashable, chars: int) -> float:
        """Return the tokens to expect of a prompt of ``chars`` characters; at least one."""
        known = self._look_up(key)
        return max(1.0, min(max(chars, 0), MAX_CHARS) / CHARS_PER_TOKEN * known.ratio)

    estimate = estimate_prompt
    """For a caller that takes a whole call, prompt and answer, as so many characters."""

    def expected_output(self, key: Hashable, max_tokens: int | None) -> float:
        """Return the tokens of output that three of four answers do not exceed.

        At least one, at most ``max_tokens``."""
        known = self._look_up(key)
        tokens = known.quantile(OUTPUT_QUANTILE) if known.bins else float(DEFAULT_OUTPUT_TOKENS)
        return max(1.0, tokens if max_tokens is None else min(tokens, max_tokens))

    def observe(
        self, key: Hashable, chars: int, prompt_tokens: float, output_tokens: float | None = None
    ) -> None:
        """Learn from a request that is done.

        The first replaces the guess, later ones weigh max(0.05, 1/n).

        Values that make no sense are ignored. ``output_tokens`` None: not known.
        """
        seen = Sketch()
        if chars > 0 and prompt_tokens >= 0:
            ratio = prompt_tokens * CHARS_PER_TOKEN / min(chars, MAX_CHARS)
            seen.ratio, seen.weight = min(max(ratio, 1.0 / MAX_RATIO), MAX_RATIO), 1.0
        if output_tokens is not None and output_tokens >= 0:
            seen.bins, seen.outputs = {_bin(output_tokens): 1.0}, 1.0
        if seen.weight or seen.bins:
            _merge_into(self._known, key, seen)
            _merge_into(self._fresh, key, seen)

    # --- sharing
    # ----------------------------------------------------------------------------------------------

    def take(self, most: int) -> dict[Hashable, Sketch]:
        """Return what was observed since the last time, of up to ``most`` keys.

        Empty sketches of keys that are unknown here."""
        return dict(self._fresh.popitem(last=False) for _ in range(min(most, len(self._fresh))))

    def put_back(self, taken: Mapping[Hashable, Sketch]) -> None:
        """Keep what was taken and could not be shared for the next time."""
        for key, sketch in taken.items():
            _merge_into(self._fresh, key, sketch)

    def adopt(self, key: Hashable, shared: Sketch) -> None:
        """Take over what the fleet learned, and keep what was observed here since it was taken."""
        fresh = self._fresh.get(key)
        self._known.pop(key, None)
        _merge_into(self._known, key, shared, memory=math.inf)
        if fresh is not None:
            self._known[key].merge(fresh)

    def _look_up(self, key: Hashable) -> Sketch:
        known = self._known.get(key)
        if known is not None and (known.weight or known.bins):
            return known
        _merge_into(self._fresh, key, Sketch())
        return Sketch()


def _merge_into(
    sketches: OrderedDict[Hashable, Sketch], key: Hashable, new: Sketch, memory: float = MEMORY
) -> None:
    sketch = sketches.setdefault(key, Sketch())
    sketch.merge(new, memory)
    sketches.move_to_end(key)
    if len(sketches) > MAX_KEYS:
        sketches.popitem(last=False)


def _bin(tokens: float) -> int:
    """Return the number of the bin that holds outputs in (GROWTH**(number - 1), GROWTH**number]."""
    return math.ceil(math.log(min(max(tokens, 1.0), MAX_OUTPUT_TOKENS)) / math.log(GROWTH) - 1e-9)


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
        """Share what was observed here and read what others observed, in one call.

        It is None when there is nothing to share."""
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
    """Return a key as the text that every process writes for it."""
    text = key if isinstance(key, str) else repr(key)
    return (
        text
        if len(text) <= MAX_FIELD_CHARS
        else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    )


def write_sketch(sketch: Sketch) -> str:
    """Write a sketch as ``scripts/learn.lua`` reads it; an empty one is written as nothing."""
    if not sketch.weight and not sketch.bins:
        return ""
    return json.dumps([0, sketch.ratio, sketch.weight, *chain.from_iterable(sketch.bins.items())])


def read_sketch(text: bytes | str) -> Sketch | None:
    """Return what ``scripts/learn.lua`` returned; None for an unknown key."""
    if not text:
        return None
    _, ratio, weight, *pairs = json.loads(text)
    return Sketch(ratio, weight, dict(zip(pairs[::2], pairs[1::2], strict=True)))


@cache
def _script() -> str:
    folder = files("penstock_ratelimit.store") / "scripts"
    return (folder / "clock.lua").read_text("utf-8") + (folder / "learn.lua").read_text("utf-8")
