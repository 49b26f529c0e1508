"""The worker's settings: the producer's, plus what it takes to do work.

Flags, `PENSTOCK_*`, `penstock.toml`, in that order.

The only place of this package that reads the environment, but for the API keys that providers name
by variable.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock_ledger.keys import ANSWERS_MAX
from penstock_ledger.redaction import looks_secret, redact, remember, remember_url
from penstock_producer.accepting.remote_limits import DoorSettings
from penstock_producer.job.endpoints import BASE_URLS
from penstock_producer.job.lanes import DEFAULT_LANE, LANES, Lane
from penstock_producer.prices import GpuPrice, known_gpu, known_gpus
from penstock_producer.settings import (
    ProducerSettings,
    ProviderFacts,
    check_url,
    refuse_example_password,
)
from penstock_workers.amqp_address import AmqpAddress
from penstock_workers.errors import MissingApiKey, PlainHttp, UnknownProvider
from penstock_workers.lane_changes import LaneChangeSettings
from penstock_workers.lanes.lane_fields import LaneFields, suitable_concurrency

__all__ = [
    "CONTROL_LANE",
    "DEFAULT_PROVIDER",
    "CostSettings",
    "ProviderSettings",
    "WorkerSettings",
    "process_name",
]


# The provider that `penstock run --base-url` defines, and that jobs use when they name none.
DEFAULT_PROVIDER = "default"
DEFAULT_BASE_URL = BASE_URLS["openai"]

# The lane of processes that run no documents: they keep jobs moving, and take those that Celery
# clients send.
CONTROL_LANE: Final = "control"
CONTROL_CONCURRENCY = 4  # jobs taken in at once: one thread each
# items in flight in one process: beyond this one core is the limit, not the slots
MAX_CONCURRENCY: Final = 10_000

# Of one answer: a larger one is refused, to protect the worker's memory.
MAX_ANSWER_BYTES = 32 * 1024 * 1024
# Of all answers above 64 KiB that a process holds at once, from their first byte until they are
# stored. A pod of 1 GiB has room for this, for reading one of them as JSON, and for everything
# else.
ANSWER_MEMORY_BYTES = 128 * 1024 * 1024
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # a name that an environment can have

PerMinuteLimit = Annotated[float, Field(gt=0)] | None
ProfileName = Literal[
    "generic",
    "openai",
    "azure",
    "anthropic",
    "bedrock",
    "gemini",
    "groq",
    "together",
    "mistral",
    "xai",
    "vllm",
]


Streams = Literal["usage", "plain", "no"]


# as botocore's service model of bedrock has them
_BUCKET: Final = r"^(s3|gs)://[a-z0-9][-._a-z0-9]{1,61}[a-z0-9](/[-!_*'().a-z0-9A-Z]+)*/?$"
_ROLE: Final = r"^arn:aws(-[^:]+)?:iam::[0-9]{12}:role/.+$"


class ProviderSettings(ProviderFacts):
    """One place that answers inference requests, with what it allows and what it costs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    base_url: str = DEFAULT_BASE_URL
    # the NAME of the variable that holds the key: keys never travel in settings or specs
    api_key_env: str | None = None
    # send the key over http:// to another machine, in a network of one's own
    allow_plain_http: bool = False
    # http://[user:password@]host:port for calls; variables such as HTTPS_PROXY do not count
    proxy: str | None = None
    # whose limits and batch API it has; None = found by the host of base_url
    profile: ProfileName | None = None
    # requests per minute shared by the fleet; None = as its headers tell, or unlimited
    rpm: PerMinuteLimit = None
    tpm: PerMinuteLimit = None  # tokens per minute, input and output together
    itpm: PerMinuteLimit = None  # input tokens per minute, for providers that limit them apart
    otpm: PerMinuteLimit = None  # output tokens per minute, likewise
    # prompt tokens in batches at once; None = no limit
    batch_enqueued_tokens: Annotated[int, Field(ge=1)] | None = None
    # where batches of Bedrock lie ("s3://bucket/prefix"), and those of Vertex AI ("gs://…"); of
    # Bedrock also the ARN of the role that reads and writes there for it
    batch_bucket: Annotated[str, Field(pattern=_BUCKET)] | None = None
    batch_role: Annotated[str, Field(pattern=_ROLE)] | None = None
    discover: bool = True  # take limits, and later changes of them, from the headers of answers
    # find out how many requests it takes at once; None = where no limit is declared
    adaptive: bool | None = None
    # answers that a caller reads as they come: `usage` asks for their figures, too; `plain` is for
    # servers that refuse `stream_options`; `no` for those that cannot stream
    streams: Streams = "usage"
    # the /metrics of a server of your own (docs/servers.md): what waits there limits what is sent
    metrics_url: str | None = None
    # interactive traffic at the same vLLM goes first: seconds to the first token that its 95th
    # percentile stays under, by metrics_url; docs/interactive.md
    interactive_ttft_s: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] | None = None
    # part of each limit that is left to interactive traffic with the same key
    interactive_share: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    # sent with each request as vLLM's `priority`, for --scheduling-policy priority: higher is
    # later, and what asks for none has 0
    request_priority: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None

    @field_validator("api_key_env", mode="before")
    @classmethod
    def _no_name_is_none(cls, name: Any) -> Any:
        """Check the name, and take an empty one for none.

        A compose file or a chart can leave a variable empty more easily than out."""
        if isinstance(name, str) and name and (looks_secret(name) or not VARIABLE.fullmatch(name)):
            remember(name)
            raise ValueError(
                "give the NAME of the variable that holds the key, such as OPENAI_API_KEY, not the "
                "key"
            )
        return name or None

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str) -> str:
        remember_url(url)
        return check_url(url, ("http", "https")).rstrip("/")

    @model_validator(mode="after")
    def _check_interactive(self) -> Self:
        if self.interactive_ttft_s is not None and self.metrics_url is None:
            raise ValueError(
                f"interactive_ttft_s = {self.interactive_ttft_s:g} needs the server's own figures: "
                "give metrics_url, vLLM's /metrics; at a provider without them leave a part of the "
                "key's limits to others by interactive_share"
            )
        if self.request_priority is not None and self.kind != "openai":
            raise ValueError(
                f"request_priority = {self.request_priority} is vLLM's, and kind {self.kind!r} has "
                "none: leave it out"
            )
        return self

    @field_validator("proxy", "metrics_url")
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
        if not url:
            return None
        remember_url(url)
        return check_url(url, ("http", "https"))

    def api_key(self, name: str) -> str | None:
        """Return the key itself, which is read when a worker starts.

        Raises MissingApiKey and PlainHttp."""
        if self.api_key_env is None:
            return None
        if self.shows_key and not self.allow_plain_http:
            raise PlainHttp(name, self.shown_url, self.api_key_env)
        key = os.environ.get(self.api_key_env)
        if not key:
            raise MissingApiKey(name, self.api_key_env)
        remember(key)
        return key

    @property
    def metering(self) -> str | None:
        """The profile that it meters by; None = found by the host of ``base_url``."""
        if self.profile is not None or self.kind == "openai":
            return self.profile
        return "gemini" if self.kind == "vertex" else self.kind

    @property
    def shows_key(self) -> bool:
        """Return whether the key would cross a network unencrypted, by http to another machine."""
        return self.api_key_env is not None and is_open_to_others(self.base_url)

    @property
    def shown_url(self) -> str:
        """``base_url`` as it may be shown."""
        return redact(self.base_url)

    @property
    def limits(self) -> dict[str, float]:
        """Declared limits, units per minute, by the quota's dimensions."""
        declared = {
            "requests": self.rpm,
            "tokens": self.tpm,
            "input_tokens": self.itpm,
            "output_tokens": self.otpm,
        }
        return {dim: limit for dim, limit in declared.items() if limit is not None}

    @property
    def limits_of_ours(self) -> dict[str, float]:
        """Declared limits without the part that is left to interactive traffic."""
        return {dim: limit * (1 - self.interactive_share) for dim, limit in self.limits.items()}

    @model_validator(mode="after")
    def _check_token_limits(self) -> Self:
        if self.tpm is not None and (self.itpm is not None or self.otpm is not None):
            raise ValueError(
                "give tpm (input and output together), or itpm and otpm (apart), not both"
            )
        return self


class CostSettings(BaseModel):
    """The cost of a worker that hosts a model, by the hour.

    Its items share the cost by the time that they compute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # of one card; None = not known
    usd_per_gpu_hour: Annotated[float, Field(ge=0, le=10_000)] | None = None
    # where `on_spot`; None = as above
    spot_usd_per_gpu_hour: Annotated[float, Field(ge=0, le=10_000)] | None = None
    on_spot: bool = False  # this worker runs on a spot or preemptible machine
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1  # cards that this worker uses
    # "nebius/H100-SXM": of the table of prices, for what is not given above; None = no such
    card: str | None = None

    @field_validator("card")
    @classmethod
    def _check_gpu(cls, card: str | None) -> str | None:
        if card is not None and known_gpu(card) is None:
            raise ValueError(
                f"the table of prices knows {', '.join(known_gpus())}; else give usd_per_gpu_hour"
            )
        return card

    @property
    def usd_per_hour(self) -> float:
        """The price of this worker; 0 where none is known."""
        spot = self.spot_usd_per_gpu_hour if self.on_spot else None
        each = self.usd_per_gpu_hour if spot is None else spot
        if each is None and self.known is not None:
            each = self.known.spot_hour if self.on_spot else self.known.hour
        return (each or 0.0) * self.gpus

    @property
    def known(self) -> GpuPrice | None:
        """The row of the table that counts where no price is given here."""
        return (
            None if self.card is None or self.usd_per_gpu_hour is not None else known_gpu(self.card)
        )


def has_arena_limit() -> bool:
    """Return whether the environment says how many arenas glibc's malloc may have."""
    return bool(os.environ.get("MALLOC_ARENA_MAX")) or "arena_max" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )


def proxy_variables() -> list[str]:
    """Return the variables that name a proxy and are set; a program may read either spelling."""
    names = [
        name for kind in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY") for name in (kind, kind.lower())
    ]
    return [name for name in names if os.environ.get(name)]


def is_open_to_others(url: str) -> bool:
    """Return whether a request to this URL crosses a network as plain text."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True  # a host name, which may be another machine's


class WorkerSettings(LaneFields, ProducerSettings):
    """Everything a worker process needs to know.

    Make one with ``load()``. Each lane's own settings stand in its folder."""

    lane: Literal[Lane, "control"] = DEFAULT_LANE
    # items in flight in one process, on one loop
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 256
    # claimed = in slots, until they are stored + waiting for a slot
    prefetch_multiplier: Annotated[int, Field(ge=1, le=16)] = 2
    # below the shortest spot notice (30 s)
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 25.0
    # whose metadata service is asked; None = SIGTERM alone
    spot_notices: Literal["aws", "gcp", "azure"] | None = None
    # of that service, where it is not http://169.254.169.254, as with IPv6 alone
    spot_notices_url: str | None = None
    # the lease; renewed every third of it
    visibility_timeout_s: Annotated[float, Field(ge=3, le=43_200)] = 60.0
    # RabbitMQ that carries the messages; None = the Redis of redis_url does
    broker_url: str | None = None
    # "redis" is kombu's stock transport
    broker_transport: Literal["penstock", "redis"] = "penstock"
    commit_linger_s: Annotated[float, Field(ge=0, le=5)] = 0.05
    commit_max: Annotated[int, Field(ge=1, le=500)] = 500
    # full jitter: wait U(0, min(cap, base * 2^attempt))
    retry_base_s: Annotated[float, Field(ge=0, le=60)] = 1.0
    # the longest jitter, and the most of a Retry-After that is waited besides
    retry_cap_s: Annotated[float, Field(gt=0, le=900)] = 60.0
    # a longer Retry-After pauses the job instead
    max_retry_after_s: Annotated[float, Field(gt=0, le=86_400)] = 900.0
    # 404s and the like in a row pause the job; 0 = never
    pause_after_run: Annotated[int, Field(ge=0, le=10_000)] = 20
    # of a job's or tenant's book of answers
    cache_entries: Annotated[int, Field(ge=1_000, le=50_000_000)] = ANSWERS_MAX
    cache_across_tenants: bool = False  # jobs with `cache` take answers of other tenants' jobs, too
    # this worker also keeps jobs moving (one leader each) and takes new ones from Celery clients
    control: bool = True
    control_interval_s: Annotated[float, Field(gt=0, le=60)] = 0.2
    reconcile_interval_s: Annotated[float, Field(gt=0, le=3600)] = 15.0
    # items in a queue; None: see feed_windows.py
    window: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    # modules, with all inside them, that jobs may name hooks of; () = none
    hook_modules: tuple[str, ...] = ()
    # that run hooks, and as many that check schemas
    hook_processes: Annotated[int, Field(ge=1, le=64)] = 2
    # one of them that holds more is ended
    hook_memory_mb: Annotated[int, Field(ge=64, le=1_048_576)] = 2048
    # of jobs that may go to several: docs/lanes.md
    lanes: LaneChangeSettings = LaneChangeSettings()
    # what jobs from Celery clients may ask for; see docs/doors.md
    doors: DoorSettings = DoorSettings()
    # where Celery clients read the results of their tasks; None = results are not kept
    result_backend_url: str | None = None
    # of one, decompressed
    max_answer_bytes: Annotated[int, Field(ge=1024 * 1024, le=1024**3)] = MAX_ANSWER_BYTES
    # of large answers held at once
    answer_memory_bytes: Annotated[int, Field(ge=1024 * 1024)] = ANSWER_MEMORY_BYTES
    # calls providers: Penstock's, or aiohttp's; docs/production.md
    http_client: Literal["lean", "aiohttp"] = "lean"
    uvloop: bool = True  # items run on uvloop where it is installed; false: on asyncio's own loop
    # share of items that send events; None: celery_app/events.py
    event_sample: Annotated[float, Field(ge=0, le=1)] | None = None
    # `celery inspect` and `control`, and Flower: anyone who reaches the broker may end workers
    remote_control: bool = True
    # Prometheus reads here; None = no page
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    metrics_host: str = "127.0.0.1"  # 0.0.0.0 where Prometheus comes from another machine
    # share of items traced with OpenTelemetry; 0 = none
    trace_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    # of workers that host a model; prices of providers are not charged there
    cost: CostSettings = CostSettings()
    probe_dir: Path | None = None  # where the process says that it is alive and ready; see probe.py
    failpoints: str = ""  # see failpoints.py; for tests
    # Narrower than the producer's, and never assigned to: the settings are frozen.
    providers: dict[str, ProviderSettings] = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default_factory=lambda: {DEFAULT_PROVIDER: ProviderSettings()}
    )

    @field_validator("broker_url", check_fields=False)
    @classmethod
    def _check_broker_url(cls, url: str | None) -> str | None:
        """Check the address, and take an empty one for none.

        A compose file or a chart can leave a variable empty more easily than out."""
        if not url:
            return None
        refuse_example_password(url)
        AmqpAddress.parse(url)
        return url

    @field_validator("spot_notices", mode="before")
    @classmethod
    def _no_cloud_is_none(cls, cloud: Any) -> Any:
        return cloud or None

    @field_validator("spot_notices_url")
    @classmethod
    def _check_spot_notices_url(cls, url: str | None) -> str | None:
        return check_url(url, ("http",)).rstrip("/") if url else None

    @field_validator("result_backend_url")
    @classmethod
    def _no_backend_is_none(cls, url: str | None) -> str | None:
        return url or None

    @model_validator(mode="after")
    def _check_answer_memory(self) -> Self:
        if self.answer_memory_bytes < self.max_answer_bytes:
            raise ValueError(
                f"answer_memory_bytes = {self.answer_memory_bytes} is less than one answer may "
                f"have: give at least max_answer_bytes = {self.max_answer_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if self.broker_url is not None and self.broker_transport != "penstock":
            raise ValueError(
                "broker_transport is for a broker that is Redis: leave it out beside broker_url"
            )
        return self

    @field_validator("lane", mode="plain", json_schema_input_type=Literal[Lane, "control"])
    @classmethod
    def _check_lane(cls, lane: Any) -> Any:
        if lane != CONTROL_LANE and (not isinstance(lane, str) or lane not in LANES):
            raise ValueError(f"lanes are {', '.join(LANES)} and {CONTROL_LANE}")
        return lane

    @model_validator(mode="before")
    @classmethod
    def _fill_concurrency(cls, given: Any) -> Any:
        """Choose the concurrency where none is given.

        It is as many items as suit the lane, and in a control process as many jobs as it has
        threads.
        """
        if not isinstance(given, dict) or given.get("concurrency") is not None:
            return given
        lane = given.get("lane")
        suits = (
            CONTROL_CONCURRENCY
            if lane == CONTROL_LANE
            else suitable_concurrency(lane, given.get(str(lane)))
        )
        return given if suits is None else given | {"concurrency": min(suits, MAX_CONCURRENCY)}

    def provider(self, name: str) -> ProviderSettings:
        """Return the settings of a provider.

        Raises UnknownProvider, naming those that are configured."""
        try:
            return self.providers[name]
        except KeyError:
            raise UnknownProvider(name, self.providers) from None


def process_name() -> str:
    """Name this process in leases and heartbeats: host and pid, readable in a status page."""
    return f"{socket.gethostname()}-{os.getpid()}"
