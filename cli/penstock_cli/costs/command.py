"""`penstock costs`: what all jobs have cost, by tenant or by lane."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from penstock_cli.job import options


class By(StrEnum):
    TENANT = "tenant"
    LANE = "lane"


def costs(
    by: Annotated[By, typer.Option("--by", help="Whose costs are added up.")] = By.TENANT,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Only jobs that were submitted within it, such as 24h or 30d."
        ),
    ] = None,
    as_json: options.JsonOption = False,
    state: options.StateOption = None,
) -> None:
    """Add up what jobs have cost, by tenant or by lane, the dearest first.

    What was spent stays in it: dead letters that were replayed,
    lost batches, jobs that were purged. Where of some of it no
    price is known, that is said, and the sum is of the rest.
    """
    import time

    import orjson

    from penstock_cli.connect import books
    from penstock_cli.costs.sums import costs_by, table
    from penstock_cli.job.jobspec import parse_duration

    begins = 0.0 if since is None else time.time() - parse_duration("--since", since)
    with books(state) as ledger:
        found = costs_by(ledger, by.value, begins)
    if as_json:
        for cost in found:
            typer.echo(orjson.dumps(cost.to_json(by.value)).decode())
        return
    for line in table(found, by.value) if found else ["no jobs yet"]:
        typer.echo(line)
