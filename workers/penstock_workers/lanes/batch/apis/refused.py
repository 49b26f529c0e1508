"""What an answer of a batch API means that is no success: who has to act, and whether the call may
have worked."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

import orjson

from penstock_ledger.redaction import redact
from penstock_ratelimit import Refusal, Signal, classify
from penstock_workers.item.failures import ASTRAY
from penstock_workers.item.outcome import Parked
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes.batch.provider import (
    TOKEN_CAP_CODES,
    AccountStopped,
    Astray,
    BatchError,
    BatchGone,
    BatchRefused,
    TokenCapReached,
    TryLater,
    Unclear,
)

NO_SUCH_ROUTE = (404, 405, 501)
REDIRECTED = "a redirect: base_url must be the final address, because keys are sent nowhere else"
FOREIGN = (
    "an HTML page: a proxy, a firewall or a login answers in the provider's place; correct "
    "base_url or proxy"
)
MAX_CODE_CHARS = 100
_CAP_IN_WORDS = re.compile(r"enqueued.{0,3}tokens", re.IGNORECASE)  # Gemini has no code for it
_HIDES = "or it may not exist"  # Google's 403 for a file that is gone


class Heard(NamedTuple):
    """A whole answer of a small call."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> Mapping[str, object]:
        """The error in it; empty where it describes none."""
        try:
            parsed = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        parsed = parsed[0] if isinstance(parsed, list) and parsed else parsed
        error = parsed.get("error") if isinstance(parsed, dict) else None
        return error if isinstance(error, dict) else {}


def judge(heard: Heard, provider: str, *, once: bool, one: bool) -> BatchError:
    """Return the error for an answer that is no 2xx.

    `once`: the call must not be made again where it may have worked. `one`: it was about one batch
    or file, which a 404 says to be gone.
    """
    refusal = classify(heard.status, heard.headers, heard.body, time.time())
    assert refusal is not None, "a 2xx is no refusal"
    words = f"provider {provider}: {redact(refusal.detail, cut=True)}"
    error = _error(heard, refusal, words, provider, once=once, one=one)
    return error.named(refusal.name, heard.status)


def _error(
    heard: Heard, refusal: Refusal, words: str, provider: str, *, once: bool, one: bool
) -> BatchError:
    error = heard.error()
    if 300 <= heard.status < 400:
        return Astray(f"provider {provider}: HTTP {heard.status}, {REDIRECTED}")
    if _codes(error) & TOKEN_CAP_CODES or (
        heard.status == 429 and _CAP_IN_WORDS.search(refusal.detail)
    ):
        return TokenCapReached(words)
    if FATES[refusal.name].outcome is Parked:
        return AccountStopped(f"{words}; {FATES[refusal.name].fix}")
    if refusal.signal in (Signal.THROTTLED, Signal.RAMP):
        return TryLater(refusal.retry_after_s, words)
    is_conflict = heard.status in (408, 409, 425) and not (
        one and error and not once
    )  # not "it has ended already"
    if heard.status >= 500 or is_conflict:
        turned_away = refusal.signal is Signal.OVERLOADED and bool(
            error
        )  # in its own words: nothing was done
        return (
            Unclear(words) if once and not turned_away else TryLater(refusal.retry_after_s, words)
        )
    if refusal.page:
        return Astray(f"provider {provider}: HTTP {heard.status} with {FOREIGN}")
    code = _code(error) or refusal.name
    if (heard.status == 403 and one and _HIDES in refusal.detail) or (heard.status == 404 and one):
        return BatchGone(heard.status, code, words)
    if heard.status in NO_SUCH_ROUTE:
        return Astray(
            f"{words}; there is no such batch API at this address: check base_url and kind"
        )
    return Astray(words) if refusal.name in ASTRAY else BatchRefused(heard.status, code, words)


def _codes(error: Mapping[str, object]) -> set[str]:
    return {code for name in ("code", "type", "status") if isinstance(code := error.get(name), str)}


def _code(error: Mapping[str, object]) -> str:
    named = (error.get(name) for name in ("code", "type", "status"))
    return next(
        (redact(code)[:MAX_CODE_CHARS] for code in named if isinstance(code, str) and code), ""
    )
