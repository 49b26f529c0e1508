"""`penstock refused`: what the doors for Celery clients have turned away."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock_cli.job import options


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
    from penstock_workers.doors.task_records import TaskRecords

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
