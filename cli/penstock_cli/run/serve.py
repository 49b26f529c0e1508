"""`penstock serve`: what it was asked to do, and how it is started, looked after and ended here.

Read ``serve_local`` from top to bottom. What it starts is ended by the ``with`` that started it, in
reverse order: the doors first, so that nothing new comes in, then the workers, the control loop and
the private Redis.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock_cli.disk import ENOUGH_BYTES, megabytes
from penstock_cli.errors import EXIT_OK, Interrupted, UsageProblem
from penstock_cli.job.options import ProviderFlags
from penstock_cli.processes.signals import Interrupts
from penstock_cli.processes.standby import Standby
from penstock_cli.run.request import cards_of, lanes_of, workers_asked
from penstock_cli.run.serve_watch import Doors, Watch
from penstock_cli.run.services import Services
from penstock_cli.show.progress import for_console
from penstock_cli.show.terminal import console as make_console
from penstock_cli.show.terminal import this_command
from penstock_cli.state import StateFolder
from penstock_producer.job.lanes import has_own_model
from penstock_producer.storage import free_bytes

if TYPE_CHECKING:
    from penstock_cli.processes.gpu_workers import Cards
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
    gpus: str | None
    concurrency: int | None
    panel: bool


def worker_lanes(request: ServeRequest, cards: Cards | None = None) -> list[str]:
    """Return the lane of each worker process. Raises UsageProblem.

    A lane that takes the whole machine gets one worker, unless more are asked for."""
    first, *others = lanes_of(request.lane)
    workers = workers_asked([first], request.workers, request.gpus)
    return [first] * (len(cards.groups) if cards else workers) + others


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
        images_url = settings.images_place or _images(request)
        settings = settings.model_copy(update={"images_url": images_url})
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


def _images(request: ServeRequest) -> str:
    """Return where images of answers go unless the settings say."""
    return str(StateFolder(request.state.absolute()).images)


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
    images_url = settings.images_place or _images(request)
    gateway = settings.gateway.model_copy(update=own)
    chosen = settings.model_copy(update={"gateway": gateway, "images_url": images_url})
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


COPIES: Final = 3
"""Of an uploaded file, until its batch is done: the file, its answers in the ledger, the output
file; about as large each."""
KEPT_FREE: Final = 128 * 1024 * 1024
"""That uploads leave free."""


def room_line(
    state: Path, upload_bytes: int, free: Callable[[Path], int | None] = free_bytes
) -> str | None:
    """Return what to say at the start; None where the system does not tell what is free.

    Raises UsageProblem for too little."""
    found = free(state)
    if found is None:
        return None
    if found < ENOUGH_BYTES:
        raise UsageProblem(
            f"--state {state}: its disk has {megabytes(found)} left, and jobs wait below "
            f"{megabytes(ENOUGH_BYTES)}. Free some space, or name a folder on another disk."
        )
    wanted = COPIES * upload_bytes + KEPT_FREE
    said = (
        f"the disk of {state} has {megabytes(found)} left; the largest upload "
        f"({megabytes(upload_bytes)}) takes about {megabytes(wanted)} until its batch is done"
    )
    return said if found >= wanted else f"{said}: smaller ones only, until there is more room"


ENDS = "Ctrl-C stops; the same command goes on with the jobs"


def serve_local(request: ServeRequest, standby: Standby) -> int:
    """Serve until a signal and return the exit status; ``standby`` forks the processes.

    Raises CliError and the errors of settings, the ledger and the workers.
    """
    console = make_console()
    with Interrupts() as interrupts, ExitStack() as screen:
        try:
            progress = screen.enter_context(
                for_console(console, "penstock serve", panel=request.panel, hint=ENDS)
            )
            progress.note("setting up: settings, flags, the provider's address")
            of_lanes = settings_of(request)
            cards = cards_of(request.gpus, of_lanes)
            state = StateFolder.create(request.state)
            with state.locked():
                settings = door_settings(request, state.files)
                if (told := room_line(state.root, settings.gateway.max_upload_bytes)) is not None:
                    progress.say(told)
                _make_ledger(state)
                _refuse_open_door(settings, request, state)
                interrupts.defer()
                services = Services(
                    of_lanes,
                    worker_lanes(request, cards),
                    state,
                    cards=cards,
                    places=[state.root],
                    hurry=interrupts.hurry,
                    asked_to_stop=lambda: interrupts.asked,
                    progress=progress,
                    standby=standby,
                )
                with (
                    services,
                    Doors(settings, services, state, progress, interrupts.hurry, standby) as doors,
                ):
                    services.start()  # while the HTTP process starts, for which a person waits
                    Watch(services, doors, state, request.lane, progress).until(
                        lambda: interrupts.asked
                    )
        except Interrupted:
            pass  # before anything was started
        screen.close()
        console.print(f"stopped; go on with:  {this_command()}", soft_wrap=True)
        return EXIT_OK


def _make_ledger(state: StateFolder) -> None:
    from penstock_ledger import open_database

    with contextlib.closing(open_database(state.database_url, role="cli")) as database:
        database.migrate()


def _refuse_open_door(settings: GatewaySettings, request: ServeRequest, state: StateFolder) -> None:
    """Raise UsageProblem at once where the HTTP process would end again and again."""
    from penstock_ledger import ApiKeyStore, open_database

    if settings.only_this_machine:
        return
    with contextlib.closing(open_database(state.database_url, role="cli")) as database:
        if not ApiKeyStore(database).any_made():
            raise UsageProblem(
                f"--host {request.host}: other machines can reach it, and there is no API key. "
                "Make the first one with `penstock keys create NAME --scope admin --state "
                f"{shlex.quote(str(request.state))}`, or leave --host out."
            )
