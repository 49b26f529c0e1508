"""The parts of a fleet beside its workers, and what they show.

They are `penstock migrate`, `control`, `gateway`, `flower` and `refused`.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli.errors import UsageProblem
from penstock_cli.job import options
from penstock_cli.processes.signals import end_with_parent
from penstock_cli.settings import parent_pid

if TYPE_CHECKING:
    from penstock_ledger import Database

ASK_AGAIN_S = 1.0  # a server that starts takes some seconds


def migrate(
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            max=3600,
            help="Seconds to wait for a database that does not answer yet, or is in use.",
        ),
    ] = 60.0,
) -> None:
    """Create or upgrade the tables of the database.

    Safe to repeat, and to run in several places at once."""
    from penstock_cli.connect import without_password
    from penstock_ledger import HEAD, open_database
    from penstock_producer.settings import ProducerSettings

    url = ProducerSettings.load().database_url
    database = open_database(url)
    try:
        before = _migrated(
            database, without_password(url), until=time.monotonic() + wait, wait_s=wait
        )
    finally:
        database.close()
    change = "is up to date" if before == HEAD else f"was brought from {before or 'nothing'}"
    sys.stdout.write(f"{without_password(url)} has schema {HEAD}: it {change}\n")


def _migrated(database: Database, shown: str, *, until: float, wait_s: float) -> str | None:
    """Migrate as soon as the server answers and no table is in use; returns the schema that it had.

    Raises DatabaseAway, SchemaTooNew and TablesInUse."""
    from penstock_cli.errors import DatabaseAway
    from penstock_ledger import DatabaseUnavailable, TablesInUse

    said = ""
    while True:
        try:
            before = database.revision()
            database.migrate()
            return before
        except DatabaseUnavailable as error:  # refused, starting up, unknown host, wrong password
            why = error.why
            if time.monotonic() + ASK_AGAIN_S > until:
                raise DatabaseAway(shown, wait_s, why) from error
            words = f"does not answer yet ({why})"
        except TablesInUse as error:
            why = "in use"  # who holds them changes with each try
            if time.monotonic() + ASK_AGAIN_S > until:
                raise
            words = f"cannot be migrated yet: {error.why}"
        if why != said:
            sys.stderr.write(f"{shown} {words}; asking again for {wait_s:g} s\n")
            said = why
        time.sleep(ASK_AGAIN_S)


def control(
    name: Annotated[
        str | None, typer.Option(help="Names this process in Flower and in logs.")
    ] = None,
) -> None:
    """Feed, promote, reconcile and finish jobs, and take jobs that Celery clients send.

    No document is run here.

    Run two for safety: each feed is led by one of them. Workers beside it get
    PENSTOCK_CONTROL=false. SIGTERM ends it.
    """
    from penstock_cli.doctor.worker import check
    from penstock_workers.__main__ import run_worker
    from penstock_workers.settings import CONTROL_LANE, WorkerSettings

    check(WorkerSettings.load(lane=CONTROL_LANE))
    run_worker(CONTROL_LANE, name=name)


NEEDED = ("fastapi", "uvicorn")


def gateway(
    host: Annotated[
        str | None, typer.Option(help="Default 127.0.0.1. Any other address needs an API key.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default 8600; 0 takes a free port.")
    ] = None,
) -> None:
    """Serve files, batches, jobs and the dashboard over HTTP; SIGTERM ends it.

    Requests that have begun may go on for gateway.drain_s seconds then, while
    /health says already that no more are taken. docs/gateway.md has all
    settings; `penstock keys create` makes a key.
    """
    parent = parent_pid()
    if parent is not None:
        end_with_parent(parent)
    for name in NEEDED:
        if find_spec(name) is None:
            raise UsageProblem(f"{name} is not installed here: pip install 'penstock[gateway]'")
    from penstock_gateway import GatewaySettings, serve_door

    settings = GatewaySettings.load()
    given: dict[str, Any] = {"host": host, "port": port}
    flags = {name: value for name, value in given.items() if value is not None}
    serve_door(settings.model_copy(update={"gateway": settings.gateway.model_copy(update=flags)}))


def refused(
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="At most this many, newest first.")
    ] = 20,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """List tasks of Celery clients that were refused or parked, with the reason.

    The last 1,000 are kept, without any content of documents. A parked task's
    message lies whole in the Redis list penstock:parked:unknown.
    """
    import json
    from dataclasses import asdict
    from itertools import islice

    from penstock_cli.connect import redis_url
    from penstock_ledger import RedisAddress
    from penstock_producer.reporting.text import safe
    from penstock_workers.celery_app.door_records import TaskRecords

    with RedisAddress.parse(redis_url(state)).connect() as client:
        found = list(islice(TaskRecords(client).refusals(), limit))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
        fate = "parked" if one.parked else "refused"
        job = f" job {one.job}" if one.job else ""
        typer.echo(safe(f"{when}  {one.task} {one.id}{job}: {fate}: {one.reason}"))
    if not found:
        typer.echo("no task was refused")


def flower(
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Default 5555; 0 takes a free port.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Default 127.0.0.1. Any other address needs a login.")
    ] = None,
    url_prefix: Annotated[
        str | None, typer.Option(help="The path under which a proxy serves Flower.")
    ] = None,
) -> None:
    """Serve Flower for this fleet; SIGTERM ends it.

    The login is PENSTOCK_FLOWER__AUTH=user:password (or FLOWER_BASIC_AUTH), never a flag: command
    lines are not secret. Everything else is read from penstock.toml, PENSTOCK_FLOWER__* and
    Flower's own FLOWER_* variables.
    """
    if find_spec("flower") is None:
        raise UsageProblem("Flower is not installed here: pip install 'penstock[flower]'")
    from penstock_cli.flower import FlowerRole, serve

    role = FlowerRole.load()
    given: dict[str, Any] = {"port": port, "address": address, "url_prefix": url_prefix}
    flags = {name: value for name, value in given.items() if value is not None}
    serve(role.model_copy(update={"flower": role.flower.model_copy(update=flags)}))
