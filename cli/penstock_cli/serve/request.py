"""What `penstock serve` was asked to do, and the settings that follow from it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.errors import UsageProblem
from penstock_cli.job.options import ProviderFlags
from penstock_cli.run.request import runs_alone
from penstock_producer.job.lanes import AUTO, AUTO_LANES, LANES, has_own_model, packs
from penstock_producer.job.options import DEFAULT_ENGINES, DEFAULT_WORKERS

if TYPE_CHECKING:
    from penstock_gateway import GatewaySettings
    from penstock_workers.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The flags."""

    host: str
    port: int
    state: Path
    lane: str
    model: str | None
    provider: ProviderFlags
    workers: int | None
    concurrency: int | None
    panel: bool


def lanes_of(lane: str) -> Sequence[str]:
    """Return the lanes that need workers. Raises UsageProblem."""
    if lane == AUTO:
        return [one for one in AUTO_LANES if not packs(one)] + [
            one for one in AUTO_LANES if packs(one)
        ]
    if lane not in LANES:
        raise UsageProblem(f"--lane {lane!r} is refused: the lanes are {', '.join([*LANES, AUTO])}")
    return [lane]


def worker_lanes(lanes: Sequence[str], workers: int | None) -> list[str]:
    """Return the lane of each worker process.

    A lane that takes the whole machine gets one worker, unless more are asked for."""
    first = workers or (DEFAULT_ENGINES if runs_alone(lanes[0]) else DEFAULT_WORKERS)
    return [lanes[0]] * first + list(lanes[1:])


def settings_of(request: ServeRequest) -> list[WorkerSettings]:
    """Return the settings of each lane, checked without a look at anything else.

    Raises UsageProblem, SettingsError, MissingApiKey, PlainHttp and ModelMissing.
    """
    from penstock_cli.job.jobspec import with_provider
    from penstock_cli.run.check import knock, name_receiver, with_short_lease
    from penstock_workers.lanes.registry import check_lane, make_lane
    from penstock_workers.settings import DEFAULT_PROVIDER, WorkerSettings

    found = []
    for lane in lanes_of(request.lane):
        check_lane(lane)
        settings = with_short_lease(WorkerSettings.load(lane=lane, concurrency=request.concurrency))
        if has_own_model(lane):
            own = settings.of_lane(lane)
            if request.model is not None and own is not None:
                settings = settings.model_copy(update={lane: own.hosting(request.model)})
            make_lane(settings)
        elif request.model is not None:
            raise UsageProblem(
                f"--model is for lanes that host a model: in the lane {lane} each request names "
                "its own"
            )
        else:
            settings = with_provider(settings, DEFAULT_PROVIDER, request.provider)
            name_receiver(DEFAULT_PROVIDER, settings.provider(DEFAULT_PROVIDER))
            knock(settings.provider(DEFAULT_PROVIDER).base_url)
        found.append(settings)
    return found


def door_settings(request: ServeRequest, files: Path) -> GatewaySettings:
    """Return the settings of the HTTP API: what penstock.toml says, and this command's place.

    Raises SettingsError and UsageProblem.
    """
    from penstock_gateway import GatewaySettings

    settings = GatewaySettings.load()
    batches = settings.gateway.batches.model_copy(update={"lane": request.lane})
    own = {
        "host": request.host,
        "port": _free_port(request),
        "files": str(files),
        "batches": batches,
    }
    chosen = settings.model_copy(update={"gateway": settings.gateway.model_copy(update=own)})
    chosen.refuse_shared_roots(request.state)
    return chosen


def _free_port(request: ServeRequest) -> int:
    """Return the port, once a look has shown that it can be had. Raises UsageProblem."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            request.host, request.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            port: int = tried.getsockname()[1]
            return port
    except OSError as error:
        raise UsageProblem(
            f"--host {request.host} --port {request.port}: cannot listen there "
            f"({error.strerror or error}). Choose another --port; 0 takes a free one."
        ) from error
