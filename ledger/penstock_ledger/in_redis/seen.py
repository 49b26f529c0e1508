"""Redis shows a fleet: its workers, why calls fail, what stops quotas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import redis

from penstock_ledger import keys
from penstock_ledger.in_redis.batches import Drained, Drains, WorkerSeen
from penstock_ledger.in_redis.redis_scripts import registered
from penstock_ledger.stored_values import storable

__all__ = ["COUNTED", "QuotaSeen", "counted", "quotas_seen"]

WORKERS_READ: Final = 10_000  # heartbeats that one look reads; more than any fleet has
INFO_CHARS: Final = 16_384  # of one text of a heartbeat; a longer one is left out
WORKER_FORGOTTEN_S: Final = 60  # a worker without a heartbeat for so long is not listed


def workers(client: Any, now: float) -> list[WorkerSeen]:
    """Return the workers heard of in the last minute, by name."""
    oldest, newest = now - WORKER_FORGOTTEN_S, now + WORKER_FORGOTTEN_S
    seen = client.zrangebyscore(
        keys.WORKERS, oldest, newest, start=0, num=WORKERS_READ, withscores=True
    )
    names = [name.decode("utf-8", "replace") for name, _ in seen]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hgetall(keys.worker(name))
        infos = pipe.execute(raise_on_error=False)
    return sorted(
        WorkerSeen(name, max(0.0, now - at), _info(info))
        for name, (_, at), info in zip(names, seen, infos, strict=True)
    )


def note_drain(client: Any, drained: Drained) -> None:
    """Count how a worker stopped."""
    lane, finished, requeued = drained
    with client.pipeline(transaction=True) as pipe:
        pipe.hincrby(keys.drains(lane), "items_finished", finished)
        pipe.hincrby(keys.drains(lane), "items_requeued", requeued)
        pipe.hincrby(keys.drains(lane), "requeued" if requeued else "finished", 1)
        pipe.execute()


def drains(client: Any, lane: str) -> Drains:
    return Drains(*(int(count or 0) for count in client.hmget(keys.drains(lane), Drains._fields)))


def _info(found: Any) -> dict[str, str]:
    """Return what a worker said of itself.

    Anyone who reaches Redis may write there: what makes no sense is left out."""
    if not isinstance(found, dict):
        return {}
    return {
        field.decode("utf-8", "replace"): text.decode("utf-8", "replace")
        for field, text in found.items()
        if len(text) <= INFO_CHARS
    }


KEEP_S: Final = 3600
"""After the last failure of a provider."""
GAP_S: Final = 300.0
"""A failure that comes longer than this after the one before begins a new count, and a new
"since"."""
FIELDS_MAX: Final = 200
"""Jobs times classes kept per provider: a few dozen kilobytes."""
CAUSE_CHARS: Final = 300
"""Of what was said."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One class of failure. Times are Unix seconds, of the clocks of the workers that saw it."""

    provider: str
    job_id: str
    name: str  # of the failure, as in the workers' table of fates
    text: str  # the last message, cut; foreign text, to be escaped where it is shown
    count: int
    since: float
    last: float


class CauseBook:
    """Written by workers every few seconds while something fails. Raises redis.RedisError."""

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._note = registered(client, "causes")

    def note(self, causes: Iterable[Cause]) -> None:
        """Add to what other workers have noted."""
        by_provider: dict[str, list[Cause]] = {}
        for cause in causes:
            by_provider.setdefault(cause.provider, []).append(cause)
        for provider, some in by_provider.items():
            entries = [
                value
                for one in some
                for value in (
                    f"{one.job_id}|{one.name}",
                    one.count,
                    one.since,
                    one.last,
                    storable(one.text[:CAUSE_CHARS]),
                )
            ]
            self._note([keys.failing(provider)], [KEEP_S, GAP_S, FIELDS_MAX, *entries])

    def of(self, provider: str, job_id: str | None = None) -> list[Cause]:
        """Return what fails at a provider, of one job or of all, the latest first.

        What cannot be read is left out."""
        found = []
        for field, text in self._client.hgetall(keys.failing(provider)).items():
            job, _, name = _text(field).partition("|")
            if job_id is not None and job != job_id:
                continue
            try:
                count, since, last, said = json.loads(text)
                found.append(
                    Cause(provider, job, name, str(said), int(count), float(since), float(last))
                )
            except (ValueError, TypeError):
                continue
        return sorted(found, key=lambda cause: -cause.last)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


QUOTAS_READ: Final = 256  # a fleet has a few; more than this is one quota per customer
TEXT_CHARS: Final = 500  # of why it is held
LIMITS_READ: Final = 32  # of one quota
_IDS: Final = "penstock:quotas"
_FIELDS: Final = (
    "config",
    "hold",
    "hat",
    "bs",
    "bu",
    "nb",
    "n",
    "x:throttled",
    "x:ramp",
    "x:failed",
    "iy",
    "ia",
)
YIELDS_S: Final = 15.0  # what was decided longer ago is of a fleet that rests


# What the counters of a quota count, in the words of every screen. All of them begin when Redis
# first knows the quota, go on from job to job, and begin anew where Redis has lost its data.
COUNTED: Final[Mapping[str, str]] = {
    "granted": "calls started",
    "throttled": "answered 429",
    "failures": "failed at the provider",
}


class YieldsSeen(NamedTuple):
    """A fleet is held back for interactive traffic at its server.

    As ``penstock_ratelimit.shared.interactive.Yielding`` has it."""

    code: str
    ceiling: float  # calls that the fleet may have in flight
    target_s: float
    ttft_s: float | None  # the 95th percentile of late; None = there is none
    why: str  # why the server's figures could not be read; foreign text
    binds: bool  # the fleet has about as many in flight as it may


QuotaState = Literal["open", "held", "failing", "waiting"]


class QuotaSeen(NamedTuple):
    """One quota. Seconds are from now on, by the clock of Redis."""

    quota_id: str
    limits: Mapping[str, float]  # units per second that the provider allows, by what is limited
    granted: int
    throttled: int
    failures: int
    hold: str  # why the account is held; empty = it is not
    held_s: float
    pause_left_s: float  # the provider said: nothing for so long
    open_left_s: float  # it fails: nothing for so long
    probing: bool  # a few trial requests decide whether it is back
    yields: YieldsSeen | None = None

    @property
    def state(self) -> QuotaState:
        """Return what keeps requests from starting: a hold, a failing provider, or its wait.

        Or nothing."""
        if self.hold:
            return "held"
        if self.open_left_s > 0 or self.probing:
            return "failing"
        return "waiting" if self.pause_left_s > 0 else "open"


def counted(granted: int, throttled: int, failures: int) -> list[tuple[int, str]]:
    """Return the counters of a quota with what each counts, as every screen says it."""
    return list(zip((granted, throttled, failures), COUNTED.values(), strict=True))


def quotas_seen(client: redis.Redis, clock_us: Callable[[], int] | None = None) -> list[QuotaSeen]:
    """Return the quotas by id. Raises redis.RedisError.

    ``clock_us`` replaces Redis's own clock in tests.
    """
    pool: Any = client
    ids = sorted(_text(name) for name in pool.srandmember(_IDS, QUOTAS_READ))
    with pool.pipeline(transaction=False) as pipe:
        pipe.time()
        for quota_id in ids:
            pipe.hmget(f"penstock:{{q:{quota_id}}}", _FIELDS)
        (seconds, micros), *rows = pipe.execute()
    now_us = seconds * 1_000_000 + micros if clock_us is None else clock_us()
    return [
        _seen(quota_id, dict(zip(_FIELDS, row, strict=True)), now_us)
        for quota_id, row in zip(ids, rows, strict=True)
    ]


def _seen(quota_id: str, row: Mapping[str, Any], now_us: float) -> QuotaSeen:
    state = int(_number(row["bs"]))
    hold = _text(row["hold"] or b"")[:TEXT_CHARS]
    return QuotaSeen(
        quota_id,
        _limits(row["config"]),
        int(_number(row["n"])),
        int(_number(row["x:throttled"])) + int(_number(row["x:ramp"])),
        int(_number(row["x:failed"])),
        hold,
        max(0.0, (now_us - _number(row["hat"])) / 1_000_000) if hold and row["hat"] else 0.0,
        max(0.0, (_number(row["nb"]) - now_us) / 1_000_000),
        max(0.0, (_number(row["bu"]) - now_us) / 1_000_000) if state == 1 else 0.0,
        state == 2,
        yields_of(row["iy"]) if now_us - _number(row["ia"]) <= YIELDS_S * 1_000_000 else None,
    )


def yields_of(stored: str | bytes | None) -> YieldsSeen | None:
    """Return what a process has said of a hold, as JSON; None where that makes no sense."""
    if not stored:
        return None
    try:
        said = json.loads(stored)
        ttft_s = said["ttft_s"]
        return YieldsSeen(
            str(said["code"])[:TEXT_CHARS],
            _number(said["ceiling"]),
            _number(said["target_s"]),
            None if ttft_s is None else _number(ttft_s),
            str(said["why"])[:TEXT_CHARS],
            said["binds"] is True,
        )
    except (ValueError, KeyError, TypeError):
        return None


def _limits(config: Any) -> dict[str, float]:
    try:
        dims = json.loads(config or b"{}")["dims"]
        return {str(name): float(values[0]) for name, values in sorted(dims.items())[:LIMITS_READ]}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}


def _number(value: Any) -> float:
    try:
        number = float(value or 0)
    except (ValueError, TypeError):
        return 0.0
    return number if math.isfinite(number) else 0.0
