"""Where lines of a file go that name another path than their job does.

This says which paths, and what such a request is. Only paths that every provider of OpenAI's kind
answers jobs on: which others a provider answers, no file may say.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.job.endpoints import CHAT, OPENAI, SCORING
from penstock_producer.job.lanes import can_answer
from penstock_producer.job.params import params_of
from penstock_producer.job.response_format import FIELD
from penstock_producer.job.spec import JobSpec

__all__ = ["at_endpoint", "url_refusal"]

# whose answers have a text to check
_TEXTS: Final = frozenset({CHAT, "/v1/completions", "/v1/responses"})


def url_refusal(url: Any, spec: JobSpec) -> tuple[str, str] | None:
    """Return why no line of this job may name ``url``, and what to do; None where it may.

    It is not the job's own endpoint."""
    if spec.endpoint not in OPENAI | SCORING or type(url) is not str or url not in OPENAI:
        others = sorted(
            {spec.endpoint} | (OPENAI if spec.endpoint in OPENAI | SCORING else frozenset())
        )
        why = "The url is not one that lines of this job may name."
        return (
            why,
            Text(
                f"write one of {', '.join(others)}, or submit with the endpoint of the lines (",
                SetOption("endpoint"),
                ")",
            ),
        )
    cannot = [lane for lane in spec.permitted_lanes if not can_answer(lane, url)]
    if cannot:
        return (
            f"Lane {cannot[0]} does not answer {url}.",
            "send such lines in a job of their own, for a lane that does",
        )
    if spec.response_schema is not None and url not in _TEXTS:
        fix = "send such lines in a job of their own"
        return (
            f"The job checks answers by a response_schema, and those of {url} have no text to "
            "check.",
            fix,
        )
    return None


def at_endpoint(spec: JobSpec, endpoint: str) -> JobSpec:
    """Return the job as it is for lines that name ``endpoint``.

    Of its parameters they have those that are known there.
    """
    known = params_of(endpoint) or {}
    changes: dict[str, Any] = {
        "endpoint": endpoint,
        "params": {name: value for name, value in spec.params.items() if name in known},
    }
    if FIELD not in known:
        changes["response_format"] = "none"
    return spec.model_copy(update=changes)
