"""Metering profiles: what each provider charges for a request, when, and what it gives back.

Reserving less than the provider charges means 429s, and so does refunding what it never gives back;
reserving more wastes quota. Where a provider does not say, the profile errs on the side of waste.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from penstock_ratelimit.rates import Slope

REQUESTS: Final = "requests"
TOKENS: Final = "tokens"
INPUT: Final = "input_tokens"
OUTPUT: Final = "output_tokens"
PER_DAY: Final = "_per_day"

MAX_TOKENS_BELIEVED: Final = 100_000_000
"""A usage figure above this is a provider's mistake."""
BEDROCK_UNSET_MAX_TOKENS: Final = 64_000
"""Bedrock reserves the model's maximum when a request names none; this is that of its Claude models
since 3.7."""


_SLOPE: Final = Slope()
_AFTER_A_MINUTE: Final = Slope(after_idle_s=60.0)
_AFTER_A_QUARTER: Final = Slope(after_idle_s=900.0)


class Output(Enum):
    """The charge for the answer when a provider admits the request."""

    MAX_TOKENS = "max_tokens"
    """All that the answer may be long."""
    EXPECTED = "expected"
    """Nothing yet, but what is written counts: what such answers usually take is reserved."""
    FREE = "free"
    """Nothing, ever: only the prompt counts."""


class Usage(NamedTuple):
    """Tokens that one answer took, as its provider reported.

    ``input_tokens`` excludes cache reads and writes."""

    input_tokens: float
    output_tokens: float
    cache_read_tokens: float = 0.0
    cache_write_tokens: float = 0.0

    @classmethod
    def from_body(cls, usage: Mapping[str, object]) -> Usage | None:
        """Read the ``usage`` object of an answer, OpenAI's (both APIs) or Anthropic's.

        It is None when it makes no sense.

        OpenAI counts cached tokens among the input and names them in ``…_details``; Anthropic
        counts them beside it.
        """
        prompt = _first(usage, "prompt_tokens", "input_tokens")
        output = _first(usage, "completion_tokens", "output_tokens") or 0.0
        if prompt is None:
            return None
        if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
            read = _first(usage, "cache_read_input_tokens") or 0.0
            return cls(prompt, output, read, _first(usage, "cache_creation_input_tokens") or 0.0)
        details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
        cached = _first(details, "cached_tokens") or 0.0 if isinstance(details, Mapping) else 0.0
        cached = min(cached, prompt)
        return cls(prompt - cached, output, cached)


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider's way to meter.

    Charges name every dimension that a quota may have; it takes those it limits."""

    name: str
    dims: tuple[str, ...]
    """The dimensions it usually limits."""
    output: Output
    settles: bool
    """The charge is corrected to what was used when the answer is there."""
    header_style: str = "x-ratelimit"
    """A key of ``headers.STYLES``."""
    burst_s: float = 0.5
    horizon_s: float = 1.0
    slope: Slope | None = _SLOPE
    """None: going from nothing to everything at once does no harm."""
    charges_failed: bool = True
    """Failed requests count like others; where a provider does not say, they are taken to."""
    unset_max_tokens: int | None = None
    """Output charged at admission when the request names no ``max_tokens``; None: what such answers
    usually take."""
    cache_reads: bool = True
    """Tokens read from the prompt cache count, once settled."""
    burndown: float = 1.0
    """Units of ``tokens`` that one token of output costs, once settled."""

    def reserve(
        self, prompt_tokens: float, max_tokens: int | None, expected_output: float
    ) -> dict[str, float]:
        """Return the units charged at admission.

        ``expected_output`` is in tokens, say the estimator's p75; never negative."""
        prompt, expected = max(0.0, prompt_tokens), max(0.0, expected_output)
        match self.output:
            case Output.FREE:
                output = 0.0
            case Output.EXPECTED:
                output = expected if max_tokens is None else min(expected, max(0, max_tokens))
            case Output.MAX_TOKENS:
                output = self._most(max_tokens, expected)
        return _charges({REQUESTS: 1.0, TOKENS: prompt + output, INPUT: prompt, OUTPUT: output})

    def settle(self, usage: Usage) -> dict[str, float]:
        """Return the units charged in the end, to replace what was reserved.

        It is empty where the provider never gives anything back."""
        if not self.settles:
            return {}
        fresh = (
            usage.input_tokens
            + usage.cache_write_tokens
            + (usage.cache_read_tokens if self.cache_reads else 0.0)
        )
        output = 0.0 if self.output is Output.FREE else usage.output_tokens
        return _charges({TOKENS: fresh + output * self.burndown, INPUT: fresh, OUTPUT: output})

    def certain(
        self, prompt_tokens_floor: float, max_tokens: int | None = None
    ) -> dict[str, float]:
        """Return the units charged in any case.

        A request for which they are above the cap can never be sent. ``prompt_tokens_floor`` is
        what the prompt has for sure, not an estimate.
        """
        prompt = max(0.0, prompt_tokens_floor)
        output = float(max(0, max_tokens or 0)) if self.output is Output.MAX_TOKENS else 0.0
        return _charges({REQUESTS: 1.0, TOKENS: prompt + output, INPUT: prompt, OUTPUT: output})

    def _most(self, max_tokens: int | None, expected: float) -> float:
        if max_tokens is not None:
            return float(max(0, max_tokens))
        return expected if self.unset_max_tokens is None else float(self.unset_max_tokens)


_RPM_TPM: Final = (REQUESTS, TOKENS)

PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        # Nothing is known: the prompt and the usual answer, settled to what was used, which is what
        # `tokens per minute` means at most places. 0.5 s at once also fits a provider that enforces
        # whole seconds.
        Profile("generic", _RPM_TPM, Output.EXPECTED, settles=True),
        # "maximum of `max_tokens` and the estimated number of tokens based on the character count",
        # for failed requests too; posted headers show no refund
        # (developers.openai.com/api/docs/guides/rate-limits; community.openai.com/t/541210).
        # Whether the prompt comes on top of max_tokens is not said: it is taken to. max_tokens
        # unset: the documents are silent; the usual answer is taken. Bucket one minute deep by its
        # headers. Slope: `slow_down` above 1M TPM for growth beyond 50 % in 15 min.
        Profile(
            "openai",
            _RPM_TPM,
            Output.MAX_TOKENS,
            settles=False,
            burst_s=2.0,
            slope=_AFTER_A_QUARTER,
        ),
        # Prompt estimate + max_tokens (+ best_of), a running count "reset each minute", no refund;
        # requests limited over 1 or 10 s, so little at once (learn.microsoft.com .../how-to/quota).
        # Unset: as at OpenAI.
        Profile(
            "azure", _RPM_TPM, Output.MAX_TOKENS, settles=False, header_style="azure", horizon_s=0.4
        ),
        # ITPM estimated at the start and corrected; OTPM counts "as produced", max_tokens "does not
        # factor": the usual answer is reserved and settled. Cache reads do not count (except Haiku
        # 3.5), cache writes do. Bucket "continuously replenished"; acceleration limits on sharp
        # ramps, hence a slope after a minute of idleness
        # (platform.claude.com/docs/en/api/rate-limits). Failed requests: not said.
        Profile(
            "anthropic",
            (REQUESTS, INPUT, OUTPUT),
            Output.EXPECTED,
            settles=True,
            cache_reads=False,
            header_style="anthropic",
            burst_s=2.0,
            slope=_AFTER_A_MINUTE,
        ),
        # Input + cache reads and writes + max_tokens at admission (unset: the model's maximum); at
        # the end input + cache writes + output times a burndown: 5 for Claude since 3.7, 1 for most
        # others, where 5 wastes quota
        # (docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html). No headers.
        # Mantle endpoints limit input and output apart, which fits: the burndown is of `tokens`
        # only.
        Profile(
            "bedrock",
            _RPM_TPM,
            Output.MAX_TOKENS,
            settles=True,
            cache_reads=False,
            burndown=5.0,
            unset_max_tokens=BEDROCK_UNSET_MAX_TOKENS,
            header_style="none",
            horizon_s=0.4,
        ),
        # "Tokens per minute (input)", requests per minute and day
        # (ai.google.dev/gemini-api/docs/rate-limits): the answer is free. No headers; failed
        # requests and cached tokens: not said. Vertex publishes no limits at all.
        Profile(
            "gemini",
            (REQUESTS, TOKENS, REQUESTS + PER_DAY),
            Output.FREE,
            settles=True,
            header_style="none",
            horizon_s=0.4,
        ),
        # TPM counts prompt + max_tokens at admission (koassistant.koplugin#106: "Limit 8000,
        # Requested 32979"), some accounts have ITPM/OTPM beside it; whether the rest comes back is
        # not said. The requests headers are a day's (console.groq.com/docs/rate-limits).
        Profile(
            "groq",
            (REQUESTS, TOKENS, REQUESTS + PER_DAY),
            Output.MAX_TOKENS,
            settles=False,
            header_style="groq",
        ),
        # Requests and tokens per second by its headers (curator#484); what counts as a token is not
        # said: as generic. Burst and horizon stay within the second.
        Profile(
            "together",
            _RPM_TPM,
            Output.EXPECTED,
            settles=True,
            header_style="together",
            horizon_s=0.4,
        ),
        # Requests per second and tokens per minute and month (docs.mistral.ai, rate limits); what
        # counts as a token, and of failed requests, is not said: as generic, within the second. 429
        # `rate_limited`, code 1300.
        Profile("mistral", _RPM_TPM, Output.EXPECTED, settles=True, horizon_s=0.4),
        # Requests per second and tokens per minute: prompt, answer and reasoning all count
        # (docs.x.ai/developers/rate-limits); what is charged at admission, of failed requests, and
        # which headers tell of limits, is not said: as generic, within the second.
        Profile("xai", _RPM_TPM, Output.EXPECTED, settles=True, horizon_s=0.4),
        # Nothing is charged and nothing refused: an unbounded queue (vllm#13395, #18826), which
        # only concurrency control keeps short. The charges are for limits that you declare
        # yourself.
        Profile(
            "vllm",
            (),
            Output.EXPECTED,
            settles=True,
            header_style="none",
            charges_failed=False,
            slope=None,
        ),
    )
}
"""By name. Each row's comment says what is charged when, and who says so."""

_HOSTS: Final = (
    ("api.openai.com", "openai"),
    (".api.openai.com", "openai"),  # regions
    (".openai.azure.com", "azure"),
    (".cognitiveservices.azure.com", "azure"),
    (".services.ai.azure.com", "azure"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gemini"),
    ("api.groq.com", "groq"),
    ("api.mistral.ai", "mistral"),
    ("api.together.xyz", "together"),
    ("api.together.ai", "together"),
    ("api.x.ai", "xai"),
)


def profile_for(base_url: str, name: str | None = None) -> Profile:
    """Return the profile of this name; without one that of the provider at this address.

    It is "generic" for an address that is not known (vLLM has none of its own). Raises KeyError for
    an unknown name.
    """
    if name is not None:
        return PROFILES[name]
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        host = ""
    if host.startswith(("bedrock-runtime", "bedrock-mantle")) and host.endswith(
        (".amazonaws.com", ".api.aws")
    ):
        return PROFILES["bedrock"]
    for known, its_name in _HOSTS:
        if host == known or (known.startswith(".") and host.endswith(known)):
            return PROFILES[its_name]
    return PROFILES["generic"]


def _charges(units: Mapping[str, float]) -> dict[str, float]:
    """Return the same units against limits per minute and per day.

    What counts for one counts for the other."""
    daily = {name + PER_DAY: units[name] for name in (REQUESTS, TOKENS) if name in units}
    return {**units, **daily}


def _first(fields: Mapping[str, object], *names: str) -> float | None:
    """Return the first of these fields that is a believable number of tokens."""
    for name in names:
        value = fields.get(name)
        if (
            isinstance(value, int)
            and not isinstance(value, bool)
            and 0 <= value <= MAX_TOKENS_BELIEVED
        ):
            return float(value)
    return None
