"""How each provider meters, as far as it is known: the settings behind `--like`.

Sources: those named in penstock_ratelimit/provider/profiles.py. What a provider does not publish is
set to the stricter guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
    # No limits and no 429: what does not fit in the batch waits.
    "vllm": Metering(
        headers="none", retry_style="none", crowded="queue", max_concurrency=VLLM_MAX_NUM_SEQS
    ),
}
