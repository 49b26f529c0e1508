"""How the commands that only look at a job count its tokens.

--tokenizer counts there even where nothing is cut by it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import GivenJob, parse_pairs

if TYPE_CHECKING:
    from penstock_producer.accepting.estimates import TokenMeter
    from penstock_producer.job.spec import JobSpec


def for_a_look(given: GivenJob) -> tuple[GivenJob, str | None]:
    """Return the job without a tokenizer that its spec has no use for, and that tokenizer."""
    tokenizer = given.flags.get("tokenizer")
    if tokenizer is None or _cuts_by_tokens(given):
        return given, None
    return replace(given, flags={**given.flags, "tokenizer": None}), str(tokenizer)


def meter(spec: JobSpec, tokenizer: str | None) -> TokenMeter:
    """Return the meter that counts the job's tokens.

    Raises UsageProblem for a tokenizer that was named and cannot be read.
    """
    from penstock_producer.accepting.estimates import meter_of

    try:
        return meter_of(spec.model, tokenizer or spec.tokenizer)
    except ValueError as error:
        raise UsageProblem(f"--tokenizer: {error}") from error


def _cuts_by_tokens(given: GivenJob) -> bool:
    limits = given.flags.get("truncate") or {}
    pairs = parse_pairs("--truncate", limits) if isinstance(limits, list) else limits
    return any(str(limit).partition(":")[0].strip().endswith("t") for limit in pairs.values())
