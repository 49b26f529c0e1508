"""What a caller is answered when a call has no result, and what becomes of a call that none awaits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import orjson
from redis import RedisError

from penstock_gateway.direct.answers import Outcome
from penstock_gateway.direct.open_jobs import CallJob
from penstock_gateway.refused import Refused
from penstock_ledger import (
    Cause,
    DoorCallStore,
    ItemKey,
    OutcomeStore,
    RedisLedger,
    SettleBatch,
    SettledDead,
    buckets_for,
)
from penstock_ledger.model import DeadLetter
from penstock_ledger.redaction import redact
from penstock_producer.feed.routes import GENERATION

__all__ = [
    "CALLER_GONE",
    "MAY_BE_TRIED_AGAIN",
    "TIMED_OUT",
    "refused_for_dead_letter",
    "stop",
    "timed_out",
]

TIMED_OUT: Final = "timed_out"
CALLER_GONE: Final = "caller_gone"
_WORDS: Final[Mapping[str, str]] = {
    TIMED_OUT: "no worker had begun it when the time of its caller was over",
    CALLER_GONE: "its caller hung up, or got another answer, before a worker had begun it",
}


def stop(
    outcomes: OutcomeStore,
    store: DoorCallStore,
    hot: RedisLedger,
    job: CallJob,
    bodies: Mapping[str, bytes],
    reason: str,
) -> tuple[dict[str, Outcome], set[str]]:
    """End those documents that no worker has begun.

    Returns the outcomes that there are now, and which documents were begun.

    A worker that begins one in the same moment makes its call: the second of both outcomes is
    counted as such.
    """
    items = [ItemKey(job.job_id, GENERATION, doc_id) for doc_id in bodies]
    try:
        begun = {
            key.doc_id for key, is_begun in zip(items, hot.begun(items), strict=True) if is_begun
        }
    except RedisError:  # unknown: they are left to run
        return store.outcomes(job.job_id, list(bodies)), set(bodies)
    ended = [key for key in items if key.doc_id not in begun]
    _end(outcomes, hot, job, ended, bodies, reason)
    return store.outcomes(job.job_id, list(bodies)), begun


def _end(
    outcomes: OutcomeStore,
    hot: RedisLedger,
    job: CallJob,
    ended: Collection[ItemKey],
    bodies: Mapping[str, bytes],
    reason: str,
) -> None:
    if not ended:
        return
    now = time.time()
    letters = [
        DeadLetter(
            key=key,
            reason=reason,
            attempts=0,
            calls=0,
            last_error=_WORDS[reason],
            status_code=None,
            request=bodies[key.doc_id],
            response=None,
            created_at=now,
        )
        for key in ended
    ]
    lost = outcomes.settle([], letters)
    buckets = buckets_for(job.job)
    # SQL has it: a message of it that is claimed again is dropped
    with contextlib.suppress(RedisError):
        hot.settle(
            SettleBatch(
                dead=[SettledDead(key, buckets, reason) for key in ended if key not in lost]
            )
        )


WORDS_CHARS: Final = 500
RETRY_AFTER_S: Final = 5
MAY_BE_TRIED_AGAIN: Final = frozenset({408, 409, 425, 429})
# about the account of this server, not about the request
_OURS: Final = frozenset({401, 402, 403, 407})
_THROTTLED: Final = frozenset({"rate_limited", "daily_limit", "slow_down"})
_BY_REASON: Final[dict[str, tuple[int, str]]] = {
    TIMED_OUT: (504, "request_timeout"),
    CALLER_GONE: (504, "request_timeout"),
    "timeout": (504, "provider_timeout"),
    "content_filter": (400, "content_filter"),
    "worker_crashed": (500, "worker_crashed"),
    "cancelled": (503, "job_cancelled"),
}


def refused_for_dead_letter(letter: DeadLetter) -> Refused:
    """Return a dead letter as an error: the provider's own, or the reason in words."""
    status, code = _status_of(letter)
    said = _said_by_provider(letter) if status == letter.status_code else {}
    message = said.get("message") or f"{letter.reason}: {letter.last_error}"
    headers = {"retry-after": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    if status == 504:
        headers["x-should-retry"] = "false"  # the clients of OpenAI would wait as long again, twice
    return Refused(
        status,
        redact(message[:WORDS_CHARS]),
        code=said.get("code") or code,
        param=said.get("param"),
        kind=said.get("type") or ("rate_limit_error" if status == 429 else "invalid_request_error"),
        headers=headers,
    )


def may_be_tried_again(outcomes: Iterable[Outcome]) -> bool:
    """Return whether all of them failed by something that may be over by now."""
    return all(
        isinstance(one, DeadLetter)
        and ((status := _status_of(one)[0]) >= 500 or status in MAY_BE_TRIED_AGAIN)
        for one in outcomes
    )


def timed_out(timeout_s: float, causes: Iterable[Cause], *, begun: bool) -> Refused:
    """Say that the caller's time is over, and what fails at the provider, as workers say."""
    failing = next(iter(causes), None)
    if failing is not None and failing.name in _THROTTLED:
        return Refused(
            429,
            f"the provider limits this server's requests ({failing.name}), and the call had no "
            f"answer in {timeout_s:g} s",
            code="rate_limit_exceeded",
            kind="rate_limit_error",
            headers={"retry-after": str(RETRY_AFTER_S)},
        )
    why = f"; lately calls fail: {failing.name}" if failing is not None else ""
    what = (
        "it had begun, and its answer is kept"
        if begun
        else "it had not begun, and was not paid for"
    )
    return Refused(
        504,
        f"the call had no answer in {timeout_s:g} s: {what}{why}",
        code="request_timeout",
        kind="server_error",
        headers={"x-should-retry": "false"},
    )


def _status_of(letter: DeadLetter) -> tuple[int, str]:
    if letter.reason in _BY_REASON:
        return _BY_REASON[letter.reason]
    status = letter.status_code
    if status is not None and 400 <= status < 500 and status not in _OURS:
        return status, letter.reason
    return 502, letter.reason


def _said_by_provider(letter: DeadLetter) -> dict[str, Any]:
    """Return the provider's error envelope, of OpenAI's shape, without what is no text."""
    try:
        said = orjson.loads(letter.response or b"")
    except orjson.JSONDecodeError:
        return {}
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict):
        return {}
    return {
        name: error[name]
        for name in ("message", "type", "code", "param")
        if isinstance(error.get(name), str)
    }
