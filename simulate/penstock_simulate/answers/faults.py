"""Some calls fail, and some documents never succeed.

That is drawn from the seed, the document and the number of the call.

Nothing depends on the order in which calls arrive, so a fleet of any size meets the same faults.
"""

from __future__ import annotations

import math
import re
import struct
from enum import StrEnum
from hashlib import blake2b
from statistics import NormalDist
from typing import NamedTuple

from penstock_simulate.config import SimulatorConfig
from penstock_simulate.hostile import Kind, chosen

_UNIT = 2.0**-53  # the finest step of a float below 1
_THREE = struct.Struct(">QQQ")
_NORMAL = NormalDist()
_GENERATION = re.compile(r"~g\d+$")


class Fault(StrEnum):
    """The fault of one call. The value names the rate that makes it, less `_rate`."""

    THROTTLE = "throttle"
    ERROR = "error"
    OVERLOAD = "overload"
    DROP = "drop"
    HTML = "html"
    TRUNCATE = "truncate"
    ERROR_BODY = "error_body"
    HANG = "hang"


class Poison(StrEnum):
    """The reason why a document can never succeed: the code of the 400 that it gets."""

    INVALID = "invalid_value"
    CONTEXT = "context_length_exceeded"
    FILTER = "content_filter"


class Draw(NamedTuple):
    """The luck of one call.

    ``fraction`` in [0, 1) decides details, such as where a connection breaks."""

    fault: Fault | None
    latency_s: float
    fraction: float


def document_of(tag: str) -> str:
    """Return the document in an item tag `<job>:<doc>~g<generation>`.

    Its luck is the same in every job and generation."""
    job, colon, document = tag.partition(":")
    return _GENERATION.sub("", document) if colon else job


def seed_key(seed: int) -> bytes:
    return seed.to_bytes(16, "big", signed=True)


def uniforms(key: bytes, text: str) -> tuple[float, float, float]:
    """Draw three numbers in [0, 1) that follow from the seed's key and the text alone."""
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=24, key=key).digest()
    first, second, third = _THREE.unpack(digest)
    return (first >> 11) * _UNIT, (second >> 11) * _UNIT, (third >> 11) * _UNIT


class Fates:
    """Draws for every call and document under one configuration."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._key = seed_key(config.seed)
        self._poison_rate = config.poison_rate
        self._flex_full_share = config.flex_full_share
        self._median_s = config.latency_ms / 1000
        self._sigma = config.latency_sigma
        self._steps: list[tuple[float, Fault]] = []
        reached = 0.0
        for name in config.rates():
            reached += getattr(config, name)
            self._steps.append((reached, Fault(name.removesuffix("_rate"))))
        self._any_fault = reached

    def draw(self, document: str, call: int) -> Draw:
        """Draw what happens to a call; ``call`` is 1 for the first call for this document."""
        luck, latency, fraction = self._uniforms(f"{call} {document}")
        fault = None
        if luck < self._any_fault:
            fault = next(fault for reached, fault in self._steps if luck < reached)
        return Draw(fault, self._latency_s(latency), fraction)

    def is_flex_full(self, document: str, call: int) -> bool:
        return (
            self._flex_full_share > 0
            and self._uniforms(f"flex {call} {document}")[0] < self._flex_full_share
        )

    def poison(self, document: str) -> Poison | None:
        if not self._poison_rate:
            return None
        luck, kind, _ = self._uniforms("poison " + document)
        return tuple(Poison)[int(kind * len(Poison))] if luck < self._poison_rate else None

    def _latency_s(self, uniform: float) -> float:
        if not self._sigma or not self._median_s:
            return self._median_s
        return self._median_s * math.exp(self._sigma * _NORMAL.inv_cdf(max(uniform, _UNIT)))

    def _uniforms(self, text: str) -> tuple[float, float, float]:
        return uniforms(self._key, text)


class Hostility:
    """Draws under one configuration. Times are seconds of the caller's steady clock."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._kinds = chosen(config.hostile)
        self._calls, self._documents = config.hostile_share, config.hostile_documents
        self._for_s = config.hostile_for_s
        self._key = seed_key(config.seed)
        self._since: float | None = None

    def kind(self, document: str, call: int, now: float) -> Kind | None:
        """Choose how this call is answered; None where it is answered well."""
        if not self._kinds or self._is_over(now):
            return None
        luck, which, _ = uniforms(self._key, f"hostile {document}")
        if luck >= self._documents:
            luck, which, _ = uniforms(self._key, f"hostile {call} {document}")
            if luck >= self._calls:
                return None
        return self._kinds[int(which * len(self._kinds))]

    def _is_over(self, now: float) -> bool:
        if self._since is None:
            self._since = now
        return self._for_s is not None and now >= self._since + self._for_s
