"""Settings choose among words, each with its meaning, and single settings are checked.

A refusal names the flag, the value seen and what to give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

WINDOWS = ("bucket", "10s", "minute")
CREDIT_ERRORS = (
    "insufficient_quota",
    "credit_balance_exhausted",
    "enforced_spend_limit_reached",
    "billing_error",
)
# all but the second are the authority's
CERTIFICATES = ("good", "self-signed", "expired", "other-host")


class Mode(StrEnum):
    """The moments to charge output tokens; input is charged at admission everywhere."""

    RESERVE = "reserve"  # max_tokens at admission, never given back: OpenAI, Azure
    ACTUAL = "actual"  # what `usage` will say, at admission
    SETTLE = "settle"  # max_tokens at admission, corrected to `usage` at the end: Bedrock
    PRODUCED = "output-as-produced"  # evenly over the time that the answer takes: Anthropic
    INPUT = "input"  # never: only the prompt counts, Gemini


class Crowded(StrEnum):
    """The answers to a call above the capacity."""

    THROTTLED = "429"  # too many concurrent requests
    UNAVAILABLE = "503"  # shared capacity is gone
    QUEUED = "queue"  # it waits as long as it takes: vLLM


class Scheduling(StrEnum):
    """The orders in which calls leave the queue: vLLM's --scheduling-policy."""

    FCFS = "fcfs"
    PRIORITY = "priority"  # by their field `priority`, lower first


class Structured(StrEnum):
    """The treatments of a `response_format`."""

    JSON_SCHEMA = "json_schema"  # answers fit the schema: OpenAI, vLLM
    JSON_OBJECT = "json_object"  # schemas are refused, any JSON object is given: DeepSeek
    NONE = "none"  # every format is refused
    IGNORED = "ignored"  # answers are texts all the same: Anthropic's OpenAI-compatible endpoint


class HeaderStyle(StrEnum):
    """The providers whose headers are sent; with ANTHROPIC errors have its form, too."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    TOGETHER = "together"
    AZURE = "azure"
    GROQ = "groq"
    NONE = "none"


class RetryStyle(StrEnum):
    """The headers of a wait. Both figures are rounded up."""

    BOTH = "both"  # whole seconds for all clients, milliseconds for clients that know the header
    SECONDS = "seconds"
    MILLISECONDS = "ms"
    DATE = "date"  # an HTTP date in retry-after
    NONE = "none"
    ABSURD = "absurd"  # one after the other from ABSURD_VALUES


VLLM_MAX_NUM_SEQS = 256  # vLLM's default for the sequences of one batch


class Metering(NamedTuple):
    """The settings that a preset decides. Each is a flag of its own, which goes first."""

    window: str = "bucket"
    tokens_window: str = "bucket"
    depth_s: float = 10.0
    charge: str = "reserve"
    unset_max_tokens: int = 256
    burndown: int = 1
    headers: str = "openai"
    retry_style: str = "both"
    crowded: str = "429"
    credit_error: str = "insufficient_quota"
    max_concurrency: int | None = None


_QUEUED = Metering(
    headers="none", retry_style="none", crowded="queue", max_concurrency=VLLM_MAX_NUM_SEQS
)
PRESETS: Mapping[str, Metering] = {
    # Posted headers fit a bucket of one minute's depth that is never refunded.
    "openai": Metering(depth_s=60.0),
    # Requests are limited over 10 s; the count of tokens starts anew each minute.
    "azure": Metering(window="10s", tokens_window="minute", headers="azure"),
    # max_tokens does not count; a wait is in seconds; 529 when the machines are full.
    "anthropic": Metering(
        depth_s=60.0,
        charge="output-as-produced",
        headers="anthropic",
        retry_style="seconds",
        crowded="503",
        credit_error="enforced_spend_limit_reached",
    ),
    # Reserves max_tokens, unset the model's maximum, and corrects at the end to input + output x
    # burndown, both as for Claude since 3.7. Sends neither limits nor waits.
    "bedrock": Metering(
        depth_s=60.0,
        charge="settle",
        unset_max_tokens=64_000,
        burndown=5,
        headers="none",
        retry_style="none",
        crowded="503",
    ),
    # Its tokens per minute are those of the input. Shared capacity that is gone is a 429 without a
    # wait.
    "gemini": Metering(
        window="minute",
        tokens_window="minute",
        charge="input",
        headers="none",
        retry_style="none",
        crowded="429",
    ),
    "groq": Metering(depth_s=60.0, headers="groq", retry_style="seconds"),
    # Everything per second.
    "together": Metering(
        depth_s=1.0, charge="actual", headers="together", retry_style="seconds", crowded="503"
    ),
    # Little is published of how it counts and what it tells.
    "mistral": Metering(headers="none", retry_style="none"),
    # Its tokens are those of the prompt and the answer; whether it names a wait is not published.
    "xai": Metering(depth_s=1.0, charge="actual", headers="none", retry_style="none"),
    # No limits and no 429: what does not fit in the batch waits.
    "vllm": _QUEUED,
    "sglang": _QUEUED,
    "tensorrt-llm": _QUEUED,
    "triton": _QUEUED,
    # One request at a time and 512 in the queue, as OLLAMA_NUM_PARALLEL and OLLAMA_MAX_QUEUE are.
    "ollama": _QUEUED._replace(crowded="503", max_concurrency=513),
    # --max-concurrent-requests
    "tgi": _QUEUED._replace(crowded="503", max_concurrency=128),
}


class BadSetting(ValueError):
    """A flag or a setting cannot be used; the message names it, the value seen and what to give."""

    exit_status = 2  # bad usage, as everywhere in the command line


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def unusable(name: str, value: object, fix: str) -> BadSetting:
    return BadSetting(f"{flag(name)}: {value!r} cannot be used; {fix}")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        listed = ", ".join(allowed[:-1])
        raise unusable(
            name, value, f"give {listed} or {allowed[-1]}" if listed else f"give {allowed[-1]}"
        )


def figure(name: str, value: object, *, positive: bool) -> None:
    fix = "give a number above 0" if positive else "give 0 or more"
    if not _number(value) or value < 0 or (positive and value == 0):  # type: ignore[operator]  # a number, as checked
        raise unusable(name, value, fix)


def whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise unusable(name, value, f"give a whole number from {least}")


def share(name: str, value: object, *, below_1: bool = False) -> None:
    if not _number(value) or not 0 <= value <= 1 or (below_1 and value == 1):  # type: ignore[operator]  # as above
        fix = (
            "give a share from 0 to less than 1, such as 0.3"
            if below_1
            else "give a share between 0 and 1, such as 0.05"
        )
        raise unusable(name, value, fix)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
