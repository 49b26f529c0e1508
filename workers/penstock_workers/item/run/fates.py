"""The table from the name of a failure to its outcome, and how long a retry waits.

Pure: no clock, no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_ledger.reasons import By, Reason
from penstock_ratelimit import Signal, full_jitter
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Released, Retry
from penstock_workers.item.settling.rows import dead_letter, result_of

PUT_OFF_DOUBLINGS = 3  # a retry for which the fleet has no budget waits eight times as long


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The waits before retries. Defaults are argued in docs/decisions.md ("Backoff")."""

    base_s: float = 1.0
    cap_s: float = 60.0
    max_retry_after_s: float = 900.0
    rng: random.Random = field(default_factory=random.Random)

    def wait_s(self, attempts: int, retry_after_s: float | None, *, put_off: bool = False) -> float:
        """Return what the provider asked for, plus jitter that spreads a thousand items.

        No longer than ``cap_s`` of what was asked for: the quota keeps the rest of a pause, which a
        person can lift. ``put_off``: the fleet sends too many retries already, so this one waits
        longer.
        """
        late = attempts + PUT_OFF_DOUBLINGS if put_off else attempts
        jitter_s = full_jitter(late, base_s=self.base_s, cap_s=self.cap_s, rng=self.rng)
        return min(retry_after_s or 0.0, self.cap_s) + jitter_s


THROTTLED = frozenset({Signal.THROTTLED, Signal.RAMP})


@dataclass(frozen=True, slots=True)
class Fate:
    """One row of the table: the outcome of a failure, and on which terms."""

    outcome: type[Retry] | type[Dead] | type[Released] | type[Parked]
    # of Retry: whether the attempt counts; with the last that counts, the item is dead
    counted: bool = True
    max_attempts: int | None = None  # of Retry: fewer than the job's
    fix: str = ""  # of Parked, which pauses the job: what a person has to do


WAIT = Fate(Retry, counted=False)
RETRY, RETRY_ONCE = Fate(Retry), Fate(Retry, max_attempts=2)
DEAD = Fate(Dead)

FATES: Mapping[str, Fate] = {
    # Capacity: "not now". Never costs an attempt.
    "rate_limited": WAIT,  # 429 with or without Retry-After
    "daily_limit": WAIT,  # a limit of a day: with its Retry-After the job pauses
    "slow_down": WAIT,  # 429 `slow_down`: the ramp is too steep
    "overloaded": WAIT,  # 503, 529
    "connect_failed": WAIT,  # no connection was made, so nothing was sent
    "engine_busy": WAIT,  # the worker's own engine has no room
    "escalated": WAIT,  # its first answer goes on to a better model, which was not asked yet
    "engine_died": Fate(Released),  # the worker's own engine; its start stays counted as a crash
    # Transient: probably works next time.
    "engine_failed": RETRY,  # the worker's own engine could not do this one, and goes on
    "engine_aborted": RETRY,  # the engine ended the request by itself: the answer is cut short
    "server_error": RETRY,  # other 5xx
    "timeout": RETRY,  # ambiguous: the call may have been billed
    "connection_lost": RETRY,  # reset or closed after sending
    "request_conflict": RETRY,  # 408, 409, 425
    "invalid_answer": RETRY,  # 200 with HTML, an empty or a truncated body
    "error_in_answer": RETRY,  # 200 whose body is {"error": …}
    "empty_answer": RETRY_ONCE,  # no choices, null content without a reason
    # asked for a schema, got something else; follow_ups.py asks again before this
    "schema_mismatch": RETRY_ONCE,
    "answer_cut": RETRY_ONCE,  # the same where max_tokens cut it: no other words would help
    "invalid_result": RETRY,  # the job's own hook refused the answer
    "batch_expired": RETRY,  # a provider batch ran out of time before it came to the document
    "batch_cancelled": RETRY,  # it was cancelled before that, by a person at the provider
    "batch_lost": RETRY,  # it ended without an answer for the document, or is gone
    "lane_left": WAIT,  # its job has left the lane before the provider came to the document
    "batch_refused": WAIT,  # the provider refused all of it, for lines of other documents
    "batch_stuck": WAIT,  # it never came to an end, and a person took its documents back
    "gave_way": WAIT,  # its job took a step of `degrade` before the batch was created
    "unexpected_error": RETRY,  # a defect of this program; the traceback is in the worker's log
    "forbidden": RETRY_ONCE,  # 403: this document, model or project; firewalls err once in a while
    # 401 or 402 in HTML: a proxy's, which says nothing about the account
    "foreign_page": RETRY_ONCE,
    # Permanent: the request itself is at fault.
    "prompt_too_long": DEAD,  # above the job's max_prompt_tokens, by estimate: nothing was sent
    "bad_request": DEAD,  # 400
    "context_overflow": DEAD,  # 400 `context_length_exceeded`
    "not_found": DEAD,  # 404: the model or the route
    "request_too_large": DEAD,  # 413, or larger than the quota ever allows
    "unprocessable": DEAD,  # 422
    "content_filter": DEAD,  # refused by the provider's policy, as an error or as a finish reason
    "client_error": DEAD,  # any other 4xx
    "redirected": DEAD,  # 3xx: redirects are off, so that keys go nowhere else
    "hook_failed": DEAD,  # the job's own hook raised
    "answer_too_large": DEAD,  # above the setting max_answer_bytes
    "source_lost": DEAD,  # the document behind a reference cannot be read any more
    "worker_crashed": DEAD,  # it kills the process that runs it
    # The account, not the item: no item of the job can succeed until a person acts.
    "unauthorized": Fate(
        Parked, fix="check the API key (the variable named by api_key_env), then resume"
    ),
    "out_of_credit": Fate(
        Parked, fix="add credit or raise the spend limit at the provider, then resume"
    ),
}


def decide(
    attempt: Attempt, happened: Failure | Reply, policy: RetryPolicy, *, put_off: bool = False
) -> Outcome:
    """Return the outcome of an attempt. ``put_off``: the fleet's budget of retries is used up."""
    if isinstance(happened, Reply):
        return Done(result_of(attempt, happened))
    fate = FATES[happened.name]
    if fate.outcome is Parked:
        account = {"detail": happened.detail, "fix": fate.fix}
        return Parked(pauses=Reason(happened.name, By.PROVIDER, account))
    # its caller has seen the beginning of this answer: another one would not go on with it
    if attempt.passing is not None and attempt.passing.has_begun:
        return Dead(dead_letter(attempt, happened))
    if fate.outcome is Released:
        return Released(explain(happened), crashed=happened.name)
    if fate.outcome is Dead or (happened.final and fate.counted):
        return Dead(dead_letter(attempt, happened))
    if happened.retry_after_s is not None and happened.retry_after_s > policy.max_retry_after_s:
        return _paused_for(happened, happened.retry_after_s, policy)
    most = min(attempt.job.spec.max_attempts, fate.max_attempts or attempt.job.spec.max_attempts)
    if fate.counted and attempt.number >= most:
        return Dead(dead_letter(attempt, happened))
    return Retry(
        after_s=policy.wait_s(attempt.retries, happened.retry_after_s, put_off=put_off),
        name=happened.name,
        detail=happened.detail,
        counted=fate.counted,
        rate_limited=happened.signal in THROTTLED,
    )


def explain(failure: Failure) -> str:
    """Return the failure in words, with what to do about it where only a person can."""
    return "; ".join(
        part for part in (f"{failure.name}: {failure.detail}", FATES[failure.name].fix) if part
    )


def _paused_for(failure: Failure, retry_after_s: float, policy: RetryPolicy) -> Parked:
    asked = {"wait_s": retry_after_s, "max_wait_s": policy.max_retry_after_s}
    return Parked(pauses=Reason(failure.name, By.PROVIDER, asked), ends_in_s=retry_after_s)
