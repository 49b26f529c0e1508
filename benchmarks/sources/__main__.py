"""What reading documents costs, a form after the other: `python -m benchmarks.sources [forms]
[--rows N] [--rounds N]`.

Penstock's pass at submit (every row is checked and counted, its id compared with all others) and a
feeder's pass from the pin into request bodies stand beside libraries that read the same file into
Python dictionaries and do nothing with them. Every reading is a process of its own, so that its
peak memory is its own, and they take turns. CPU of all its threads is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.harness.ground import ROOT, GroundError, end_in_order, folder, tests_on_path
from benchmarks.harness.report import median
from benchmarks.sources.forms import FORMS, POSTGRESQL
from benchmarks.sources.one import FEED, SUBMIT
from benchmarks.sources.peers import PEERS
from penstock_ledger import open_database

MIB: Final = 1024 * 1024
OURS: Final = (SUBMIT, FEED)
LIMIT_S: Final = 3_600.0  # of one reading


class Reading(NamedTuple):
    rows: int
    cpu_s: float
    wall_s: float
    peak: int  # bytes, of the whole process
    grown: int  # bytes of it since its imports were done

    @property
    def row_us(self) -> float:
        return 1e6 * self.cpu_s / self.rows


Found = Mapping[str, Sequence[Reading]]


def measure(form: str, place: Path, rows: int, rounds: int) -> Found:
    """What was written is removed before the next form is."""
    kind = FORMS[form]
    rows = max(rows // kind.share, 1)
    path = place / kind.name
    url = f"sqlite:///{place / f'ledger-{form}.db'}"
    with closing(open_database(url)) as database:
        database.migrate()
    found: dict[str, list[Reading]] = {reader: [] for reader in (*OURS, *_installed(form))}
    with _server(form, rows):
        kind.write(path, rows)
        for turn in range(rounds):
            for reader, readings in found.items():
                readings.append(_read(form, reader, path, url, f"{form}-{turn}", rows))
    _remove(path)
    return found


def _server(form: str, rows: int) -> AbstractContextManager[None]:
    """What a form needs beside its files; its CPU is not counted."""
    if form == "bucket":
        return bucket(rows)
    return postgresql() if form == "postgresql" else nullcontext()


@contextmanager
def postgresql() -> Iterator[None]:
    """A server of its own; children find it by their environment."""
    with tests_on_path():
        servers = import_module("servers")
    server = servers.Postgres.start(fsync=True)
    try:
        os.environ[POSTGRESQL] = server.uri
        yield
    finally:
        server.stop()


@contextmanager
def bucket(objects: int) -> Iterator[None]:
    """A bucket's server in a process of its own, whose CPU is not counted; children find it by
    their environment."""
    command = [sys.executable, "-m", "benchmarks.sources.objects", str(objects)]
    keys = {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            os.environ.update(
                {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{int(server.stdout.readline())}", **keys}
            )
            yield
        finally:
            server.terminate()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _installed(form: str) -> list[str]:
    return [
        name
        for name, peer in PEERS[form].items()
        if all(util.find_spec(need.partition(".")[0]) for need in peer.needs)
    ]


def _read(form: str, reader: str, path: Path, url: str, job_key: str, rows: int) -> Reading:
    command = [
        sys.executable,
        "-m",
        "benchmarks.sources.one",
        form,
        reader,
        str(path),
        url,
        job_key,
    ]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if told.returncode:
        raise GroundError(f"{form}, {reader}: {told.stderr.strip()[-2_000:]}")
    reading = Reading(**json.loads(told.stdout.splitlines()[-1]))
    if reading.rows != rows:
        raise GroundError(f"{form}, {reader}: {reading.rows:,} rows were read of {rows:,}")
    return reading


def table(form: str, found: Found) -> Table:
    fastest = min(
        (name for name in found if name not in OURS), key=lambda name: _row_us(found[name])
    )
    rows, rounds = found[FEED][0].rows, len(found[FEED])
    shown = Table(title=f"{form}, {rows:,} rows, {rounds} round(s)", title_justify="left")
    shown.add_column("reader")
    for heading in (
        "CPU us/row",
        "rows/s of CPU",
        "rows/s",
        "peak MiB",
        "grown MiB",
        f"of {fastest}",
    ):
        shown.add_column(heading, justify="right")
    for name, readings in found.items():
        per = _row_us(readings)
        over = [
            one.cpu_s / other.cpu_s for one, other in zip(readings, found[fastest], strict=True)
        ]
        shown.add_row(
            name,
            f"{per:.2f}",
            f"{1e6 / per:,.0f}",
            f"{median([one.rows / one.wall_s for one in readings]):,.0f}",
            f"{max(one.peak for one in readings) / MIB:.0f}",
            f"{max(one.grown for one in readings) / MIB:.0f}",
            f"{median(over):.2f}x",
        )
    return shown


def _row_us(readings: Sequence[Reading]) -> float:
    return median([reading.row_us for reading in readings])


def _versions() -> str:
    libraries = ("orjson", "pyarrow", "polars", "duckdb", "sqlalchemy")
    found = ", ".join(
        f"{name} {metadata.version(name)}" for name in libraries if util.find_spec(name)
    )
    return f"{os.cpu_count()} cores, {found}; load average {os.getloadavg()[0]:.1f} before the run"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sources", description=__doc__)
    parser.add_argument(
        "forms",
        nargs="*",
        metavar="form",
        choices=[*FORMS, []],
        help=f"of {', '.join(FORMS)}; default all",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help=(
            "a folder and a bucket have a tenth as many files, a table of PostgreSQL a fifth as "
            "many rows (%(default)s)"
        ),
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="how often each takes its turn (%(default)s)"
    )
    return parser.parse_args()


def main() -> None:
    given = _arguments()
    end_in_order()
    console = Console(width=None if os.isatty(1) else 150)
    console.print(_versions(), highlight=False)
    with folder() as place:
        for form in given.forms or FORMS:
            console.print(table(form, measure(form, place, given.rows, given.rounds)))
    console.print(
        "  peers make one dictionary per row; rows of a folder are files, those of a bucket "
        "objects",
        highlight=False,
    )


if __name__ == "__main__":
    main()
