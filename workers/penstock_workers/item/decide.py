"""From what happened to what becomes of the item. Pure: no clock, no I/O; the settle step does what is decided here."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock_ledger.model import DeadLetter, Result
from penstock_ratelimit import Signal, full_jitter
from penstock_workers.item.flight import Flight
from penstock_workers.item.judge import Act, Failure, Reply
from penstock_workers.item.outcome import Dead, Done, Outcome, Parked, Released, Retry

PUT_OFF_DOUBLINGS = 3  # a retry for which the fleet has no budget waits eight times as long
RESPONSE_EXCERPT_BYTES = 2_000  # of the provider's last answer kept in a dead letter
THROTTLED = frozenset({Signal.THROTTLED, Signal.RAMP})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait. Defaults are argued in docs/decisions.md ("Backoff")."""

    base_s: float = 1.0
    cap_s: float = 60.0
    max_retry_after_s: float = 900.0
    rng: random.Random = field(default_factory=random.Random)

    def wait_s(self, tries: int, retry_after_s: float | None, *, put_off: bool = False) -> float:
        """What the provider asked for, plus full jitter so that a thousand items do not come back in one instant.

        No longer than ``cap_s`` of what was asked for: the rest of a pause is the quota's to keep, where it can be lifted.
        ``put_off``: the fleet sends too many retries already, so this one waits longer.
        """
        late = tries + PUT_OFF_DOUBLINGS if put_off else tries
        return min(retry_after_s or 0.0, self.cap_s) + full_jitter(
            late, base_s=self.base_s, cap_s=self.cap_s, rng=self.rng
        )


def decide(flight: Flight, happened: Failure | Reply, policy: RetryPolicy, *, put_off: bool = False) -> Outcome:
    """The item's outcome for this try. ``put_off``: the fleet's budget of retries is used up."""
    if isinstance(happened, Reply):
        return Done(_result(flight, happened))
    fate, retry_after_s = happened.fate, happened.retry_after_s
    if fate.act is Act.DEAD or (fate.act is Act.RETRY and happened.final):
        return Dead(dead_letter(flight, happened))
    if fate.act is Act.RELEASE:
        return Released(explain(happened), crashed=True)
    if fate.act is Act.PAUSE:
        return Parked(explain(happened), pauses=True)
    if retry_after_s is not None and retry_after_s > policy.max_retry_after_s:
        return Parked(
            f"{happened.name}: the provider asks to wait {retry_after_s:.0f} s, "
            f"longer than max_retry_after_s={policy.max_retry_after_s:.0f}; the job goes on by itself when that is over",
            pauses=True,
            ends_in_s=retry_after_s,
        )
    counted = fate.act is Act.RETRY
    if counted and flight.attempt >= min(flight.job.spec.max_attempts, fate.max_tries or flight.job.spec.max_attempts):
        return Dead(dead_letter(flight, happened))
    return Retry(
        after_s=policy.wait_s(flight.retries, retry_after_s, put_off=put_off),
        error=f"{happened.name}: {happened.detail}",
        counted=counted,
        rate_limited=happened.signal in THROTTLED,
    )


def explain(failure: Failure) -> str:
    """The failure in words for a person, with what to do about it where only a person can."""
    return "; ".join(part for part in (f"{failure.name}: {failure.detail}", failure.fate.fix) if part)


def dead_letter(flight: Flight, failure: Failure) -> DeadLetter:
    """The dead letter that tells a person what failed, and holds the request for a replay."""
    spent = flight.spent_in_all
    return DeadLetter(
        key=flight.key,
        reason=failure.name,
        attempts=flight.attempt,
        calls=flight.calls_in_all,
        last_error=failure.detail,
        status_code=failure.status,
        request=flight.given,
        response=flight.last_answer[:RESPONSE_EXCERPT_BYTES] if flight.last_answer else None,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cost_microusd=spent.cost_microusd,
    )


def _result(flight: Flight, reply: Reply) -> Result:
    spent = flight.spent_in_all
    return Result(
        key=flight.key,
        status_code=reply.status,
        body=reply.body,
        request_id=reply.request_id,
        model=reply.model,
        finish_reason=reply.finish_reason,
        prompt_tokens=spent.prompt_tokens if any(spent) else reply.prompt_tokens,
        completion_tokens=spent.completion_tokens if any(spent) else reply.completion_tokens,
        cost_microusd=spent.cost_microusd,
        latency_ms=reply.latency_ms,
        attempts=flight.attempt,
        calls=flight.calls_in_all,
    )
