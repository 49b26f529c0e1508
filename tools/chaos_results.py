"""`make chaos`: every fault of `penstock chaos` in each lane, and the page of what came of it.

Lanes api and batch are tried on both databases. Without PostgreSQL the page has SQLite alone, and
says so. A promise that was broken is on the page, too, and the exit status is that of `penstock
chaos`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_cli.chaos.servers import postgres_programs
from penstock_cli.errors import PromiseBroken, UsageProblem

PAGE = Path(__file__).parents[1] / "docs" / "chaos-results.md"
SEED = 1
POSTGRES = "--postgres"
CAMPAIGNS = (
    ("Lane api, SQLite", "api"),
    ("Lane api, PostgreSQL", "api", POSTGRES),
    ("Lane batch, SQLite", "batch"),
    ("Lane batch, PostgreSQL", "batch", POSTGRES),
    ("Lane gpu, SQLite", "gpu"),
    ("Lane embed, SQLite", "embed"),
)
HEAD = """# Results of `make chaos`

Each fault of [`penstock chaos`](chaos.md) once, in each lane, on {date}, on a machine with {cores}
cores and {memory} GB of memory (Python {python}). Times go with the machine; whether a promise
holds must not. *Twice*: calls that were made twice, of how many were allowed. *Not booked*:
billed tokens (lane `batch`: answers) that are not in the books.
"""


def campaign(lane: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run one; its progress goes to our stderr."""
    words = ["chaos", "--json", "--lane", lane, "--seed", str(SEED), *more]
    done = subprocess.run(  # noqa: S603 -- ourselves
        [sys.executable, "-m", "penstock_cli", *words], stdout=subprocess.PIPE, text=True
    )
    if done.returncode not in (0, PromiseBroken.exit_status):
        sys.exit(done.returncode)
    return done.returncode, json.loads(done.stdout)


def section(title: str, found: dict[str, Any]) -> str:
    """Return a table, and what was broken in words."""
    head, *rows = found["table"]
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    broken = [
        f"- {' + '.join(one['faults'])}: {problem}"
        for one in found["faults"]
        for problem in one["problems"]
    ]
    said = ["Broken:", "", *broken] if broken else ["Every promise held."]
    return "\n".join([f"## {title}", "", f"`{found['again']}`", "", *lines, "", *said, ""])


def has_postgres() -> bool:
    """Return whether `--postgres` finds what it starts."""
    try:
        postgres_programs()
    except UsageProblem:
        return False
    return True


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def main() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    head = HEAD.format(
        date=time.strftime("%Y-%m-%d"),
        cores=os.cpu_count(),
        memory=round(memory),
        python=platform.python_version(),
    )
    parts, worst = [head], 0
    for title, lane, *more in CAMPAIGNS:
        sys.stderr.write(f"== {title}\n")
        if more and not has_postgres():
            parts.append(f"## {title}\n\nNot tried: no PostgreSQL on this machine.\n")
            continue
        status, found = campaign(lane, *more)
        worst = max(worst, status)
        parts.append(section(title, found))
        PAGE.write_text("\n".join(parts), "utf-8")
    sys.exit(worst)


if __name__ == "__main__":
    main()
