"""A table of a database becomes another one beside it, and each night only the new rows are paid.

    python examples/tables.py                        # a simulated provider answers: no key
    python examples/tables.py --base-url https://api.openai.com/v1 --api-key-env
    OPENAI_API_KEY --model gpt-5-mini

It is one `penstock run`, whose query asks for the rows behind the last one that has a label; a
script of two lines does it in cron. Here the nights follow one another.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from provider import flags_of, provider_of, run
from tickets import notes

PROMPT = "Sort this ticket for our support team: bug, wish or question?\n\n{text}"
NEW = 5  # tickets that come before the second night


def main() -> int:
    asked = flags_of(__doc__, "example-tables", docs=40).parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    shop = asked.out / "shop.db"
    tickets = list(islice(notes(Path(sysconfig.get_path("stdlib"))), asked.docs))
    with provider_of(asked) as provider:
        add(shop, tickets[:-NEW])
        label(shop, asked, provider)
        add(shop, tickets)
        label(shop, asked, provider)
        label(shop, asked, provider)
    show(shop)
    return 0


def add(shop: Path, tickets: Sequence[tuple[str, str]]) -> None:
    """Play the shop's own software, which writes tickets."""
    with closing(sqlite3.connect(shop)) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS tickets "
            "(id INTEGER PRIMARY KEY, place TEXT UNIQUE, text TEXT NOT NULL)"
        )
        database.executemany("INSERT OR IGNORE INTO tickets (place, text) VALUES (?, ?)", tickets)


def label(shop: Path, asked: argparse.Namespace, provider: Sequence[str]) -> None:
    """Do what cron does each night: the same command goes on where an earlier one was cut off."""
    last, new = behind(shop)
    if not new:
        print(f"nothing is new behind {last}")
        return
    print(f"{new} rows are new behind {last}")
    run(
        f"sqlite:///{shop}",
        "--query",
        f"SELECT id, place, text FROM tickets WHERE id > {last}",
        "--job",
        f"labels-after-{last}",
        "--out",
        str(asked.out / f"after-{last}"),
        *provider,
        "--model",
        asked.model[0],
        "--prompt",
        PROMPT,
        "--into",
        f"sqlite:///{shop}",
        "--into-table",
        "labels",
    )


def behind(shop: Path) -> tuple[int, int]:
    """The last ticket that has a label, and how many tickets have come since."""
    with closing(sqlite3.connect(shop)) as database:
        made = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'labels'").fetchone()
        last = database.execute("SELECT max(id) FROM labels").fetchone()[0] if made else 0
        new = database.execute("SELECT count(*) FROM tickets WHERE id > ?", (last,)).fetchone()[0]
    return last, new


def show(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as database:
        columns = [name for _, name, *_ in database.execute("PRAGMA table_info(labels)")]
        rows, tickets = (
            database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("labels", "tickets")
        )
    print(f"{rows} of {tickets} tickets are in labels: {', '.join(columns[:5])}, …")


if __name__ == "__main__":
    sys.exit(main())
