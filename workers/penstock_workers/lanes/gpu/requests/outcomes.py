"""What each finish reason of vLLM means: one table, held to the engine's own list by a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol


class Said(Protocol):
    """An answer taken apart by vLLM's parsers (``parsers.py``)."""

    @property
    def reasoning(self) -> str | None: ...

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def is_empty(self) -> bool: ...


class Unanswered(NamedTuple):
    """Why an output is no answer: the name of the failure, as in item/run/fates.py, and words for a
    person."""

    failure: str
    detail: str


ANSWERED: Final = None
REASONS: Final[Mapping[str, Unanswered | None]] = {
    "stop": ANSWERED,
    # as long as it was allowed to be: the answer says so in its own finish_reason
    "length": ANSWERED,
    "abort": Unanswered("engine_aborted", "the engine ended the request before its end"),
    "error": Unanswered(
        "engine_failed", "the engine gave the request up (finish_reason error); its log says why"
    ),
    "repetition": Unanswered(
        "invalid_answer", "the engine stopped an answer that only repeated itself"
    ),
}

ENGINES_FAULT: Final = ("engine_failed", "engine_aborted")  # and not that of the answer


def unanswered(completions: list[Any], *, wants_text: bool = True) -> Unanswered | None:
    """Why these generated sequences are no answer; None where they are one.

    A request with `ignore_eos` wants a number of tokens, and gets them though they have no text.
    """
    for one in completions:
        found = _of_reason(one.finish_reason)
        if found is not None:
            return found
    if not wants_text or any(one.text for one in completions):
        return None
    return _empty(completions)


def nothing_said(
    completions: list[Any], said: Sequence[Said], *, must_call: bool = False
) -> Unanswered | None:
    """The same of answers that were taken apart: what a model only thought is no answer, nor is
    half of a call.

    ``must_call``: the request wants a call of a tool, whatever else is said.
    """
    if must_call and not all(one.tool_calls for one in said):
        return _empty(completions, "had a whole call of a tool")
    if not all(one.is_empty for one in said):
        return None
    return _empty(
        completions,
        "had thought its way to any text" if any(one.reasoning for one in said) else "had any text",
    )


def _empty(completions: list[Any], missing: str = "had any text") -> Unanswered:
    if any(one.finish_reason == "length" for one in completions):
        return Unanswered(
            "empty_answer",
            f"the answer was cut at max_tokens before it {missing}: raise max_tokens",
        )
    return Unanswered("empty_answer", f"the model ended its answer before it {missing}")


def unpooled(output: Any) -> Unanswered | None:
    """Why an output without text is no answer; None where it is one.

    It has no finish reason: an aborted one is empty."""
    error = getattr(output, "error", None)  # vLLM has it since 0.32
    if error is not None:
        return Unanswered("engine_failed", f"the engine gave the request up: {error.message}")
    numbers = output.outputs.data
    if not numbers.numel():
        return REASONS["abort"]
    if not numbers.isfinite().all():
        words = (
            "a number of the answer is not finite; another dtype may do where this one overflows "
            "(gpu.engine.dtype)"
        )
        return Unanswered("invalid_answer", words)
    return None


def _of_reason(reason: str | None) -> Unanswered | None:
    if reason is None:
        return Unanswered("engine_aborted", "the engine ended the request without a finish reason")
    return REASONS.get(
        reason, Unanswered("engine_failed", f"the engine ended the request with {reason!r:.40}")
    )
