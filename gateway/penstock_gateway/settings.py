"""The settings of the HTTP doors: the producer's, plus `gateway.*`.

They come as variables too: PENSTOCK_GATEWAY__PORT=8600.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from penstock_producer.accepting.remote_limits import DoorSettings
from penstock_producer.job.lanes import DEFAULT_LANE, LANES, LaneAsked, has_own_model, packs
from penstock_producer.settings import DoorFiles, ProducerSettings
from penstock_producer.storage import check_destination

__all__ = ["BatchFields", "GatewayFields", "GatewaySettings", "is_loopback"]

MIB: Final = 1024 * 1024
DAY_S: Final = 86_400.0
PROVIDER: Final = r"^[A-Za-z0-9_-]{1,64}$"


class BatchFields(BaseModel):
    """The settings of batches: where they go, and how large one may be."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    provider: Annotated[str, Field(pattern=PROVIDER)] = "default"  # that answers /v1/batches
    # of batches, and of jobs and schedules over HTTP, that name none
    lane: LaneAsked = DEFAULT_LANE
    # The stop-loss of batches whose metadata names none: a share such as 50%, or off.
    stop_at_dead: Annotated[str, Field(pattern=r"^(off|\d{1,3}(\.\d+)?%)$")] = "50%"
    models: Literal["one", "any"] = "one"  # in the lines of one batch; OpenAI has one
    # lines of /v1/batches, texts of embeddings: OpenAI's
    max_requests: Annotated[int, Field(ge=1, le=10_000_000)] = 50_000
    # Of /v1/messages/batches, of any kind; None = the only provider of kind anthropic, else
    # `provider`.
    messages_provider: Annotated[str, Field(pattern=PROVIDER)] | None = None
    messages_max_requests: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000  # Anthropic's
    # of the body; Anthropic's
    messages_max_bytes: Annotated[int, Field(ge=1024, le=1024**4)] = 256 * MIB
    # after which requests expire; Anthropic's
    messages_window_s: Annotated[float, Field(gt=0, le=30 * DAY_S)] = DAY_S
    # Between two looks for batches whose job has ended, and for new ones.
    interval_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    # A process that has died in a step is waited for so long; the others take its batch then.
    lease_s: Annotated[float, Field(ge=0.5, le=600)] = 15.0
    steps: Annotated[int, Field(ge=1, le=64)] = 4  # files that one process checks or writes at once


DEFAULT_PORT: Final = 8600


class DirectFields(BaseModel):
    """Calls of callers who wait: `gateway.direct.*`, as PENSTOCK_GATEWAY__DIRECT__TIMEOUT_S=30."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Where calls may go, in this order: a lane with models of its own takes those for a model that
    # a worker there serves.
    lanes: tuple[str, ...] = (*filter(has_own_model, LANES), DEFAULT_LANE)
    provider: Annotated[str, Field(min_length=1, max_length=64)] = "default"  # that lane api asks
    # for which a call waits that does not say
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    max_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 600.0  # that a call may ask for
    # Calls that wait at once, in this process and of one tenant; each prompt of /v1/batch/sync is
    # one.
    waiting: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    tenant_waiting: Annotated[int, Field(ge=1, le=100_000)] = 500
    # Of one tenant at all doors together: what is queued or with a worker.
    queued: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    batch_prompts: Annotated[int, Field(ge=1, le=10_000)] = 256  # of one /v1/batch/sync
    batch_bytes: Annotated[int, Field(ge=1024, le=1024**3)] = 8 * MIB  # of its body
    # that a call may ask for in one answer
    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)] = 32_768
    max_n: Annotated[int, Field(ge=1, le=128)] = 8  # answers that it may ask for
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3  # of the calls behind it
    # for which an Idempotency-Key is known
    keep_answers_s: Annotated[float, Field(ge=60, le=30 * 86_400)] = 86_400.0
    # That bodies may have besides those of OpenAI's API and of vLLM's server, as safe_prompt.
    extra_fields: tuple[str, ...] = ()

    @field_validator("lanes")
    @classmethod
    def _check_lanes(cls, lanes: tuple[str, ...]) -> tuple[str, ...]:
        slow = [lane for lane in lanes if packs(lane) or lane not in LANES]
        if not lanes or slow:
            raise ValueError(f"give lanes that answer at once{f', not {slow[0]}' if slow else ''}")
        return lanes


class GatewayFields(DoorFiles):
    """The settings of doors: where they listen, and how much one caller may take of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # another needs an API key to be there
    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = DEFAULT_PORT  # 0 = any free one
    # Names besides loopback's that requests may be addressed to while there are no keys: a page of
    # another site, whose name was pointed at this machine, must not reach the doors through a
    # browser.
    hosts: tuple[str, ...] = ()
    # Balancers and proxies in front of these doors, as addresses and networks: 10.0.0.0/8. What
    # they write into X-Forwarded-For is who asks, where wrong API keys are counted; from anywhere
    # else that header says nothing.
    trusted_proxies: tuple[str, ...] = ()
    # Of one uploaded file: what OpenAI takes for a batch.
    max_upload_bytes: Annotated[int, Field(ge=1024, le=1024**4)] = 200 * MIB
    # Of any other body, read into memory whole: a call with images inside is some MiB.
    max_body_bytes: Annotated[int, Field(ge=1024, le=1024**3)] = 32 * MIB
    # Of one tenant, at once and in this process: connections that follow jobs, uploads, and sources
    # that are read to be submitted or estimated. The operator, who has no tenant, has what the door
    # as a whole has.
    tenant_streams: Annotated[int, Field(ge=1, le=1_000)] = 100
    tenant_uploads: Annotated[int, Field(ge=1, le=1_000)] = 8
    tenant_reads: Annotated[int, Field(ge=1, le=256)] = 2
    # Of all files of one tenant; what its batches write counts, and is never refused.
    tenant_file_bytes: Annotated[int, Field(ge=1024, le=1024**5)] = 100 * 1024 * MIB
    # Blocking work (SQL, files) at once; what comes on top waits in line.
    threads: Annotated[int, Field(ge=1, le=256)] = 8
    # Open at once. Where there are as many, the one that has kept the door waiting for longest
    # makes room for a new one.
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    # Of these, from one address (of IPv6: one /64 network), loopback included; None = half of them.
    # Over a balancer that trusted_proxies names: requests under way of one address behind it.
    address_connections: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    # Until the head of a request is there whole; and for which an open connection may have no
    # request.
    header_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 10.0
    keep_alive_s: Annotated[float, Field(gt=0, le=3600)] = 75.0
    # For which a body may bring nothing, or less than 1 KiB per second on average.
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    # Of all headers of one request, its path included.
    max_header_bytes: Annotated[int, Field(ge=1024, le=MIB)] = 32 * 1024
    direct: DirectFields = Field(default_factory=DirectFields)
    # After SIGTERM: for which /health says that no more work is taken while it still is, so that a
    # balancer can turn away first.
    leave_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    # And then: for which requests that have begun may go on.
    drain_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    batches: BatchFields = Field(default_factory=BatchFields)

    # Hosts that webhooks may be sent to although they are on this machine or in its network, by
    # http and at any port, too.
    webhook_hosts: tuple[str, ...] = ()
    # A PEM file of authorities that receivers may have their certificates from, beside those that
    # the system trusts.
    webhook_ca_file: Path | None = None

    @property
    def connections_of_address(self) -> int:
        return self.address_connections or max(1, self.max_connections // 2)

    @field_validator("webhook_ca_file")
    @classmethod
    def _check_ca_file(cls, path: Path | None) -> Path | None:
        if path is not None:
            try:
                ssl.create_default_context(cafile=str(path))
            except (OSError, ssl.SSLError) as error:
                raise ValueError(
                    f"give a PEM file of certificates: {error.strerror or error}"
                ) from None
        return path

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(
                    f"{proxy!r} is no address and no network; write 10.0.0.5 or 10.0.0.0/8"
                ) from None
        return proxies

    @field_validator("files")
    @classmethod
    def _check_files(cls, place: str) -> str:
        return place if "://" not in place else check_destination(place)


class GatewaySettings(ProducerSettings):
    """All that the doors read. Make one with ``load()``, which explains what it refuses."""

    # Settings are frozen, so a narrower type is as good as the same one.
    gateway: GatewayFields = Field(default_factory=GatewayFields)  # pyright: ignore[reportIncompatibleVariableOverride]
    doors: DoorSettings = Field(default_factory=DoorSettings)
    # Prometheus reads here; None = no page but /metrics
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    metrics_host: str = "127.0.0.1"  # 0.0.0.0 where Prometheus comes from another machine

    @property
    def private_places(self) -> Mapping[str, str]:
        """These doors write uploads also where no setting says where."""
        files = self.gateway.files
        place = files if "://" in files else str(Path(files).absolute())
        return {"gateway.files": place, **super().private_places}

    @property
    def files_folder(self) -> Path | None:
        """Return the folder of uploads; None for a bucket."""
        return None if "://" in self.gateway.files else Path(self.gateway.files).absolute()

    @property
    def only_this_machine(self) -> bool:
        """Return whether no other machine can reach the doors."""
        return is_loopback(self.gateway.host)


# each request asks of its Host header, and callers use few; a header has 64 KiB at most
@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's own.

    ``host`` is as a Host header or a setting has it.
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
