"""What a person can do where documents fail for one reason: one sentence for each reason of a dead letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock_ledger.model import DeadLetter
    from penstock_producer.job.spec import JobSpec

__all__ = ["fix_of"]

_REQUEST: Final = (
    "correct what the provider names: penstock preview shows the requests, and dlq replay --set NAME=VALUE sends others"
)
_SERVER: Final = "the provider fails at each of them: see how it is, then replay them (penstock dlq replay)"
_ENGINE: Final = "the worker's log has what the engine said"
_FIXES: Final[Mapping[str, str]] = {
    "bad_request": _REQUEST,
    "unprocessable": _REQUEST,
    "context_overflow": "cut the columns that are long (--truncate), or name a model with a longer context "
    "(dlq replay --set model=…)",
    "request_too_large": "cut the columns that are long (--truncate), or send less with each document",
    "content_filter": "the provider's policy refuses them: reword the prompt, or name another model (--fallback)",
    "answer_cut": "answers end before they are whole: raise max_tokens (--param max_tokens=…), or ask for shorter ones",
    "empty_answer": "answers have no text: raise max_tokens where the model thinks first, or name another model",
    "invalid_result": "the job's own hook refuses the answers: correct the prompt or the hook",
    "hook_failed": "correct the job's hook, restart the workers, then replay them (penstock dlq replay)",
    "invalid_answer": "what answers is no such API: check --base-url and the endpoint",
    "answer_too_large": "ask for shorter answers, or raise the workers' setting max_answer_bytes",
    "source_lost": "put the source back as it was, then replay them (penstock dlq replay)",
    "timeout": "answers take longer than --timeout: raise it, or lower max_tokens",
    "error_in_answer": _SERVER,
    "server_error": _SERVER,
    "connection_lost": _SERVER,
    "engine_failed": _ENGINE,
    "engine_aborted": _ENGINE,
    "worker_crashed": "each of them ends the process that runs it: the worker's log says where",
}


def fix_of(letter: DeadLetter, spec: JobSpec, url: str | None) -> str | None:
    """``url`` is the provider's where it is known. None where there is nothing to say beyond the failure's own words."""
    from penstock_workers.item.failures import ASTRAY, refuses_format
    from penstock_workers.item.run.runs import other_format, to_check

    if letter.reason in ASTRAY:
        return to_check(letter.reason, spec.provider, url)
    if letter.reason == "schema_mismatch":
        return _about_schema(spec)
    if refuses_format(letter.reason, letter.last_error) and spec.asked_format.format is not None:
        return other_format(spec.provider)
    return _FIXES.get(letter.reason)


def _about_schema(spec: JobSpec) -> str:
    asked = spec.asked_format.format
    if asked is None:
        return (
            "nothing tells the model which JSON is wanted: submit with --response-format json_schema where the provider takes "
            "it, or describe the JSON in the prompt"
        )
    if asked["type"] == "json_schema":
        return "the model does not keep to the schema in its requests: describe the JSON in the prompt, or name another model"
    return "any JSON object was asked for: name its fields in the prompt, or submit with --response-format json_schema"
