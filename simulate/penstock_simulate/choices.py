"""What a setting can be where it is one of a few words, and what each word means."""

from __future__ import annotations

from enum import StrEnum

WINDOWS = ("bucket", "10s", "minute")
CREDIT_ERRORS = (
    "insufficient_quota",
    "credit_balance_exhausted",
    "enforced_spend_limit_reached",
    "billing_error",
)
CERTIFICATES = (
    "good",
    "self-signed",
    "expired",
    "other-host",
)  # all but the second are the authority's


class Mode(StrEnum):
    """When output tokens are charged; input is charged at admission everywhere."""

    RESERVE = "reserve"  # max_tokens at admission, never given back: OpenAI, Azure
    ACTUAL = "actual"  # what `usage` will say, at admission
    SETTLE = "settle"  # max_tokens at admission, corrected to `usage` at the end: Bedrock
    PRODUCED = "output-as-produced"  # evenly over the time that the answer takes: Anthropic
    INPUT = "input"  # never: only the prompt counts, Gemini


class Crowded(StrEnum):
    """What a call above the capacity gets."""

    THROTTLED = "429"  # too many concurrent requests
    UNAVAILABLE = "503"  # shared capacity is gone
    QUEUED = "queue"  # it waits as long as it takes: vLLM


class Structured(StrEnum):
    """What becomes of a `response_format`."""

    JSON_SCHEMA = "json_schema"  # answers fit the schema: OpenAI, vLLM
    JSON_OBJECT = "json_object"  # schemas are refused, any JSON object is given: DeepSeek
    NONE = "none"  # every format is refused
    IGNORED = "ignored"  # answers are texts all the same: Anthropic's OpenAI-compatible endpoint


class HeaderStyle(StrEnum):
    """Whose headers; with ANTHROPIC errors have its form, too."""

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
