"""The settings of the simulated provider, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from penstock_simulate import choices
from penstock_simulate.choices import (
    CERTIFICATES,
    CREDIT_ERRORS,
    PRESETS,
    WINDOWS,
    BadSetting,
    Crowded,
    HeaderStyle,
    Metering,
    Mode,
    RetryStyle,
    Scheduling,
    Structured,
)
from penstock_simulate.hostile import chosen

MAX_PORT = 65_535
LOOPBACK = ("127.0.0.1", "::1", "localhost")

CHOICES = {
    "like": tuple(PRESETS),
    "window": WINDOWS,
    "tokens_window": WINDOWS,
    "charge": tuple(Mode),
    "headers": tuple(HeaderStyle),
    "retry_style": tuple(RetryStyle),
    "crowded": tuple(Crowded),
    "scheduling_policy": tuple(Scheduling),
    "credit_error": CREDIT_ERRORS,
    "certificate": CERTIFICATES,
    "structured": tuple(Structured),
}
ABOVE_0 = (
    "rpm",
    "tpm",
    "itpm",
    "otpm",
    "rpd",
    "tpd",
    "depth_s",
    "ramp_percent",
    "ramp_s",
    "hang_s",
    "hostile_for_s",
    "batch_window_s",
)
FROM_0 = (
    "latency_ms",
    "latency_sigma",
    "latency_ms_per_token",
    "retry_after_s",
    "ramp_free_rpm",
    "credit_usd",
    "usd_per_mtok_in",
    "usd_per_mtok_out",
    "usd_per_mtok_hour",
    "prompt_cache_s",
    "batch_s",
    "batch_sigma",
    "batch_step_s",
    "batch_look_404_s",
    "batch_file_404_s",
)
WHOLE = {
    "max_concurrency": 1,
    "credit_calls": 0,
    "unset_max_tokens": 1,
    "burndown": 1,
    "batch_enqueued_tokens": 1,
    "batch_min_records": 1,
    "batch_enqueued_requests": 1,
    "batch_look_403s": 0,
    "batch_short_reads": 0,
    "stream_hold_after": 0,
    "stream_cut_after": 0,
}  # with the least that can be given
SHARES = (
    "hostile_share",
    "hostile_documents",
    "flex_full_share",
    "cached_price",
    "prompt_cache_hits",
    "batch_stalled_share",
    "batch_expired_share",
    "batch_create_500_share",
    "batch_upload_500_share",
    "batch_no_upload_share",
    "batch_call_500_share",
    "batch_cut_share",
    "batch_spoilt_share",
)


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Every field is also a flag of `penstock simulate`.

    Raises BadSetting for a value that cannot be used.

    The rates from ``throttle_rate`` to ``hang_rate`` are probabilities of one call and exclude each
    other; ``poison_rate`` is the share of documents that can never succeed. None means: not there,
    or, for what a preset decides (see Metering), as in ``like``.
    """

    host: str = "127.0.0.1"
    port: int = 0  # 0 takes a free one
    like: str | None = None  # the preset of a provider
    # Limits, per minute and per day; None is no limit. Input and output apart, or together as
    # tokens.
    rpm: float | None = None
    tpm: float | None = None
    itpm: float | None = None
    otpm: float | None = None
    rpd: float | None = None
    tpd: float | None = None
    # "bucket" refills all the time; "10s" and "minute" are full again at each start
    window: str | None = None
    tokens_window: str | None = None  # for tokens, where it is another one
    depth_s: float | None = None  # what a bucket holds, in seconds of its rate
    charge: str | None = None  # see Mode
    unset_max_tokens: int | None = None  # reserved for a request that names no max_tokens
    # tokens that one of output counts for, once settled, where both share a limit
    burndown: int | None = None
    charge_failed: bool = True  # refused and failed calls use up limits too, as OpenAI documents
    headers: str | None = None  # see HeaderStyle
    foreign_share: float = 0.0  # of every limit, used by other clients of the same key
    max_concurrency: int | None = None  # calls in flight above this are crowded out
    crowded: str | None = None  # what these get, see Crowded
    scheduling_policy: str = Scheduling.FCFS.value
    # Growth of the accepted requests above this many percent within ramp_s gets slow_down.
    ramp_percent: float | None = None
    ramp_s: float = 60.0
    ramp_free_rpm: float = 60.0  # below this no growth is too steep
    # Latency: lognormal around the median, plus a part per token of the answer.
    latency_ms: float = 50.0
    latency_sigma: float = 0.3
    latency_ms_per_token: float = 0.0
    # Streamed answers: events after which one stands still until this is changed,
    stream_hold_after: int | None = None
    stream_cut_after: int | None = None  # and after which its connection ends
    # Faults of one call.
    throttle_rate: float = 0.0  # 429 with Retry-After, although the limits would allow the call
    error_rate: float = 0.0  # 500
    overload_rate: float = 0.0  # 503 server_is_overloaded; 529 with Anthropic's headers
    drop_rate: float = 0.0  # the connection ends before the answer, or in the middle of it
    html_rate: float = 0.0  # 502 with an HTML page
    truncate_rate: float = 0.0  # 200 with half a JSON document
    error_body_rate: float = 0.0  # 200 whose body is {"error": …}
    hang_rate: float = 0.0  # no answer for hang_s
    flex_full_share: float = 0.0  # calls in the flex tier that it has no room for
    retry_after_s: float = 1.0  # what an injected 429 and 503 ask for
    retry_style: str | None = None  # the headers of a wait, see RetryStyle
    hang_s: float = 600.0
    # Faults of one document, and of the account.
    poison_rate: float = 0.0
    credit_calls: int | None = None  # after this many calls the account is out of money
    credit_usd: float | None = None  # after so much spent, too
    usd_per_mtok_in: float = 0.0
    usd_per_mtok_out: float = 0.0
    cached_price: float = 0.1  # of a token that is read from the prompt cache, in ordinary ones
    # of requests whose beginning a prompt cache has: it is read, where nothing says that it must be
    prompt_cache_hits: float = 1.0
    usd_per_mtok_hour: float = 0.0  # rent of Gemini's explicit caches
    # of tiktoken, which counts tokens in the place of four characters a token
    encoding: str | None = None
    # how long a beginning of a prompt is kept since its last use; None: as its provider says
    prompt_cache_s: float | None = None
    credit_error: str | None = None  # the code of an empty account
    # Hostile answers, on this machine only (see hostile/).
    hostile: str | None = None  # the names of kinds with commas between, or "all"
    hostile_share: float = 0.1  # of calls
    hostile_documents: float = 0.0  # of documents: each of their calls, always in the same kind
    # from the first call, or the last change; after that all is well again
    hostile_for_s: float | None = None
    certificate: str | None = None  # https with a certificate of this kind, see CERTIFICATES
    # the file of the authority that signs certificates; made where it is missing
    authority: Path | None = None
    # Batches, by the clock (see batches/).
    batch_s: float = 5.0  # from the start of a batch until its last answer, the median
    batch_sigma: float = 0.0  # spread of the lognormal
    batch_step_s: float = 0.2  # of validating, finalizing and cancelling, each
    batch_window_s: float = 86_400.0  # what is not done so long after its creation expires
    batch_stalled_share: float = 0.0  # of batches: they stand still half-way, until they expire
    batch_expired_share: float = 0.0  # of batches: they expire half-way, when the others end
    batch_create_500_share: float = 0.0  # of creations: they work and answer 500
    batch_upload_500_share: float = 0.0  # of uploads: they work and answer 500
    batch_no_upload_share: float = 0.0  # of uploads: 500, and nothing was done
    batch_call_500_share: float = 0.0  # of all calls of batch APIs: 500, and nothing was done
    batch_cut_share: float = 0.0  # of downloads of results: the connection ends half-way
    # of lines of results: cut, under an unknown id before, or twice
    batch_spoilt_share: float = 0.0
    # a batch is not found for so long, from the first look on at which it has answers
    batch_look_404_s: float = 0.0
    batch_look_403s: int = 0  # first looks at each batch: 403
    # an output is not found for so long, from the first time that it is asked for
    batch_file_404_s: float = 0.0
    # first downloads of each output: the last half of its lines is not there yet
    batch_short_reads: int = 0
    # of the prompts of one model's batches that are not over
    batch_enqueued_tokens: int | None = None
    batch_min_records: int = 100  # of one of Bedrock's batches
    batch_enqueued_requests: int | None = None  # of Anthropic's batches that are not over
    # what becomes of a response_format, see Structured
    structured: str = Structured.JSON_SCHEMA.value
    api_key: str | None = None  # any other key gets 401
    seed: int = 0
    call_log: Path | None = None  # one JSON line per call, written before the answer

    def __post_init__(self) -> None:
        self._each_fits()
        self._rates_fit()
        if self.credit_usd is not None and not (self.usd_per_mtok_in or self.usd_per_mtok_out):
            raise BadSetting(
                f"--credit-usd {self.credit_usd:g} is never spent without a price; "
                "give --usd-per-mtok-in or --usd-per-mtok-out"
            )
        if self.metering.crowded == Crowded.QUEUED and self.metering.max_concurrency is None:
            raise BadSetting(
                "--crowded queue has nothing to wait for; give --max-concurrency, the calls that "
                "run at once"
            )
        if self.by_priority and self.metering.crowded != Crowded.QUEUED:
            raise BadSetting(
                "--scheduling-policy priority orders a queue, and there is none; give --like vllm, "
                "or --crowded queue with --max-concurrency"
            )

    @property
    def by_priority(self) -> bool:
        return self.scheduling_policy == Scheduling.PRIORITY

    @property
    def metering(self) -> Metering:
        """The preset with what was given in its place."""
        preset = PRESETS[self.like] if self.like else Metering()
        given = {
            name: value for name in Metering._fields if (value := getattr(self, name)) is not None
        }
        if self.window is not None:
            given.setdefault("tokens_window", self.window)
        return preset._replace(**given)

    @classmethod
    def rates(cls) -> list[str]:
        """Return the fields that are chances of a call's faults, in the order they are drawn."""
        return [
            field.name
            for field in fields(cls)
            if field.name.endswith("_rate") and field.name != "poison_rate"
        ]

    def _each_fits(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) is not None:
                choices.one_of(name, getattr(self, name), allowed)
        for name in (*ABOVE_0, *FROM_0):
            if getattr(self, name) is not None:
                choices.figure(name, getattr(self, name), positive=name in ABOVE_0)
        for name, least in WHOLE.items():
            if getattr(self, name) is not None:
                choices.whole(name, getattr(self, name), least)
        if not 0 <= self.port <= MAX_PORT:
            raise choices.unusable("port", self.port, f"give 0 (any free port) to {MAX_PORT}")
        for name in (*self.rates(), "poison_rate"):
            choices.share(name, getattr(self, name))
        choices.share("foreign_share", self.foreign_share, below_1=True)
        for name in SHARES:
            choices.share(name, getattr(self, name))
        self._harms_no_other()

    def _harms_no_other(self) -> None:
        if self.hostile is None and self.certificate is None:
            return
        chosen(self.hostile)
        if self.host not in LOOPBACK:
            given = "--hostile" if self.hostile is not None else "--certificate"
            raise BadSetting(
                f"{given} with --host {self.host}: it serves this machine only; give --host "
                "127.0.0.1"
            )

    def _rates_fit(self) -> None:
        self._add_up("one call has at most one fault", self.rates())
        self._add_up("a batch stalls or expires", ["batch_stalled_share", "batch_expired_share"])

    def _add_up(self, why: str, names: Sequence[str]) -> None:
        given = {name: getattr(self, name) for name in names if getattr(self, name)}
        if sum(given.values()) > 1 + 1e-9:
            listed = " + ".join(f"{choices.flag(name)} {rate:g}" for name, rate in given.items())
            raise BadSetting(
                f"{listed} add up to {sum(given.values()):g}: {why}; keep the sum within 1"
            )
