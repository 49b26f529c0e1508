"""`penstock migrate`: bring the database's tables up to date, once, before the fleet starts."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

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
