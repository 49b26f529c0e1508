"""The soak: ``python -m soak --minutes 60``, or ``make soak``.

A fleet of every lane and door works on mixed jobs while faults of `penstock chaos` strike it one
after the other, and nothing may grow: memory and descriptors of processes that live all the time,
keys and memory of Redis, rows and bytes of the ledger, bytes of log for each document. At the end
each document has one outcome, and the books hold what the provider has billed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from redis import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from penstock_cli.chaos.play import RESUME_S
from penstock_cli.chaos.processes import NotInTime, until
from penstock_cli.errors import CliError
from penstock_cli.show.terminal import aligned
from penstock_ledger.sql.tables import metadata
from soak.crew import Crew, Faults, crew
from soak.flat import Bound, Sample, found, per
from soak.work import MICROUSD_PER_TOKEN, Work

EVERY_S = 10.0  # between two samples
LINE_S = 60.0
MB = 1e6
MAX_SEED = 1_000_000
MOST_TOKENS = 40  # of one call here, the prompt and the answer
WAIT_S = 120.0  # at the end, for queues that are to be empty

MEMORY = Bound(0.08, 6 * MB, "allocators keep pages; a leak of 100 bytes per document is far more")
FILES = Bound(0.10, 12, "pools open connections as they need them, 3 each for SQLite")
KEYS = Bound(0.25, 150, "as many as there are jobs under way, which is luck")
REDIS = Bound(0.25, 2 * MB, "what is under way, and the marks of purged jobs (100 bytes, a week)")
ROWS = Bound(0.25, 200, "those of jobs under way, which is luck; less than one for each job")
STORE = Bound(0.25, 8 * MB, "SQLite gives no page back; it uses those of purged jobs again")
LOG = Bound(0.50, 40, "faults are logged, and strike by luck")
# Rows that stay on purpose, and what they are.
STAY = {
    "spending": "one for each purged job: its account stays",
    "firings": "one for each start of a schedule",
    "door_batches": "one for each batch: OpenAI's API deletes none",
    "door_files": "one for each file, for seven hours after its end",
}
HEAD = (
    "min", "documents", "per s", "jobs", "faults", "twice", "keys", "redis MB", "rows", "ledger MB",
    "api MB", "batch MB", "gpu MB", "embed MB", "control MB", "door MB", "files",
)  # fmt: skip


class Measures:
    """Series of samples, taken by a thread of its own, and what they have to keep to."""

    def __init__(self, there: Crew, work: Work, faults: Faults) -> None:
        self.crew, self.work, self.faults = there, work, faults
        self.series: dict[str, list[Sample]] = {}
        self.bounds: dict[str, Bound] = {}
        self._open = set[str]()  # jobs of calls that wait
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="soak-measures")

    def __enter__(self) -> Measures:
        print("  ".join(HEAD), flush=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        line_at = LINE_S
        while not self._over.wait(EVERY_S):
            at = time.monotonic() - self._began
            self._open = set(self.work.open_jobs())
            for name, value, bound in self._look():
                self.series.setdefault(name, []).append(Sample(at, value))
                if bound is not None:
                    self.bounds[name] = bound
            if at >= line_at:
                line_at += LINE_S
                print(self._line(at), flush=True)

    def _look(self) -> Iterable[tuple[str, float, Bound | None]]:
        """Yield what can be measured now; what is away is left out."""
        for kind, process in self.crew.veterans.items():
            pids = session(process.popen.pid)
            yield f"memory of {kind}", sum(map(resident, pids)), MEMORY
            yield f"files of {kind}", sum(map(descriptors, pids)), FILES
        try:
            client: Any = self.crew.store.client()
            yield "keys of Redis", sum(map(self._counts, client.scan_iter(count=1_000))), KEYS
            yield "memory of Redis", client.info("memory")["used_memory"], REDIS
            client.close()
        except RedisError:
            """It is away: that is what the faults are about."""
        try:
            yield from self._rows()
        except SQLAlchemyError:
            """Another holds its lock."""
        for name in ("files", "packed"):
            yield f"bytes in {name}", size(self.crew.folder / name), STORE
        logs = size(self.crew.logs)
        yield "log bytes", logs, None
        yield "documents", self.work.done, None

    def _counts(self, name: bytes) -> bool:
        """Return whether a key may not stay: the mark of a purged job does, for a week, and the
        completed set of an hour's calls grows with them."""
        parts = name.decode(errors="replace").split(":")
        return parts[-1] != "state" and not ("done" in parts and parts[1] in self._open)

    def _rows(self) -> Iterable[tuple[str, float, Bound | None]]:
        every = 0
        mine = {"outcomes", "spool"}
        with self.crew.producer._database.engine.connect() as connection:
            for table in metadata.sorted_tables:
                query = select(func.count()).select_from(table)
                if table.name in mine:  # the job of an hour's calls goes on all the time
                    query = query.where(table.c.job_id.not_in(self._open))
                number = connection.execute(query).scalar_one()
                if table.name in STAY:
                    yield f"rows of {table.name}", number, None
                    continue
                every += number
                yield f"rows of {table.name}", number, ROWS
        yield "all rows", every, None
        path = self.crew.folder / "ledger.db"
        yield "bytes of the ledger", path.stat().st_size, STORE

    def _now(self, name: str) -> float:
        series = self.series.get(name)
        return series[-1].value if series else 0.0

    def _line(self, at: float) -> str:
        kinds = ("api", "batch", "gpu", "embed", "control", "door")
        minute = [one for one in self.series["documents"] if one.at >= at - LINE_S]
        speed = (minute[-1].value - minute[0].value) / max(minute[-1].at - minute[0].at, 1.0)
        totals = self.work.totals
        cells = (
            f"{at / 60:.0f}",
            f"{self.work.done:,}",
            f"{speed:.0f}",
            f"{sum(totals.jobs.values())}",
            f"{self.faults.struck}",
            f"{totals.twice}",
            f"{self._now('keys of Redis'):,.0f}",
            f"{self._now('memory of Redis') / MB:.1f}",
            f"{self._now('all rows'):,.0f}",
            f"{self._now('bytes of the ledger') / MB:.1f}",
            *(f"{self._now(f'memory of {kind}') / MB:.0f}" for kind in kinds),
            "/".join(f"{self._now(f'files of {kind}'):.0f}" for kind in kinds),
        )
        return "  ".join(cell.rjust(len(head)) for cell, head in zip(cells, HEAD, strict=True))

    def conclude(self) -> list[str]:
        """Print what each series has done; return those that grow."""
        self.series["log bytes per document"] = per(
            self.series["log bytes"], self.series["documents"]
        )
        self.bounds["log bytes per document"] = LOG
        rows, growing = [], []
        for name, series in self.series.items():
            if not any(sample.value for sample in series):
                continue
            bound = self.bounds.get(name)
            seen = found(series, bound or Bound(0, 0, ""))
            if bound is None:
                verdict = STAY.get(name.removeprefix("rows of "), "counts on")
            elif not seen.enough:
                verdict = "too few samples"
            elif seen.flat:
                verdict = "flat"
            else:
                verdict = "GROWS"
                growing.append(f"{name} grows by {seen.growth:,.0f}, at most {seen.most:,.0f}")
            rows.append(
                (name, *(f"{value:,.0f}" for value in (seen.first, seen.last, seen.growth)),
                 f"{seen.most:,.0f}" if bound else "", verdict)
            )  # fmt: skip
        head = ("measured", "first third", "last third", "growth", "at most", "")
        print("", *aligned(head, rows), sep="\n", flush=True)
        return growing


def session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            found.append(int(place.name))
    return found


def resident(pid: int) -> int:
    """Return the memory that a process has, in bytes; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder; they come and go meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def soak(folder: Path, minutes: float, seed: int, samples: Path | None) -> list[str]:
    """Run it; return what was wrong."""
    with crew(folder) as (there, proxies):
        there.begin(seed)
        opened = there.producer.open_job(there.spec(), job_key="open-all-the-time")
        faults = Faults(there, proxies, there.producer.status(opened.job_id).job, seed)
        work = Work(there, seed)
        end = time.monotonic() + minutes * 60
        try:
            work.begin()
            with Measures(there, work, faults) as measures:
                while time.monotonic() < end:
                    _strike(there, work, faults)
                print("no more faults; what is under way ends", flush=True)
                work.end()
        finally:
            work.stop()
        if samples is not None:
            samples.write_text(json.dumps(measures.series))
        problems = there.problems + work.problems
        problems += audit(there, work, faults)
        return problems + measures.conclude()


def _strike(there: Crew, work: Work, faults: Faults) -> None:
    """Break something, and see that work goes on by itself."""
    did = ""
    began = time.monotonic()
    try:
        did = faults.strike()
        done, over = work.done, time.monotonic()
        until(lambda: _goes_on(there, work, done), RESUME_S, "work goes on after the faults")
        with (there.folder / "strokes.log").open("a") as log:
            lasted, rest = over - began, time.monotonic() - over
            log.write(f"{time.strftime('%T')} {did}: {lasted:.1f} s, went on after {rest:.1f} s\n")
    except (CliError, OSError) as error:
        there.problems.append(f"{did or 'a fault'}: {error}")
        print(f"PROBLEM {there.problems[-1]}", flush=True)
    rest = time.monotonic() + faults.pause()
    while time.monotonic() < rest:
        there.tend()
        time.sleep(0.1)


def _goes_on(there: Crew, work: Work, done: int) -> bool:
    there.tend()
    return work.done > done


def audit(there: Crew, work: Work, faults: Faults) -> list[str]:
    """Hold all of it to the promises: queues are empty, little was paid twice, all is booked."""
    problems, totals = [], work.totals
    try:
        until(lambda: not any(_left(there).values()), WAIT_S, "queues are empty")
    except NotInTime as error:
        problems.append(f"{error}: {_left(there)}")
    stats = there.provider.stats()
    billed, answers = stats["prompt_tokens"] + stats["completion_tokens"], stats["batches"]
    kept = round(json.loads(there.penstock("costs", "--json"))["known_usd"] * 1_000_000)
    rows = [
        ("documents", f"{totals.documents:,}", ""),
        ("jobs", f"{sum(totals.jobs.values()):,}", said(totals.jobs)),
        ("dead letters", f"{sum(totals.dead.values()):,}", said(totals.dead)),
        ("faults", f"{faults.struck:,}", f"{there.deaths} processes were replaced"),
        ("calls made twice", f"{totals.twice:,}", f"{faults.allowed:,} may have been"),
        ("tokens billed", f"{billed:,}", f"{totals.tokens:,} are in the books"),
        ("answers of batches billed", f"{answers['answered']:,}", f"{totals.answers:,} are booked"),
        ("cost, millionths", f"{totals.cost_microusd:,}", f"{kept:,} by `penstock costs`"),
    ]
    print("", *aligned(("audit", "", ""), rows), sep="\n", flush=True)
    if totals.twice > faults.allowed:
        problems.append(f"{totals.twice} calls were made twice, {faults.allowed} may have been")
    if not 0 <= billed - totals.tokens <= faults.allowed * MOST_TOKENS:
        problems.append(f"{billed:,} tokens were billed, and {totals.tokens:,} are in the books")
    if answers["answered"] != totals.answers:
        problems.append(
            f"{answers['answered']:,} answers of batches were billed, {totals.answers:,} are booked"
        )
    late = faults.allowed * MOST_TOKENS * MICROUSD_PER_TOKEN  # of workers that were frozen
    if not 0 <= kept - totals.cost_microusd <= late:
        problems.append(
            f"jobs had cost {totals.cost_microusd:,} when they were purged, and costs say {kept:,}"
        )
    return problems


def said(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


def _left(there: Crew) -> dict[str, int]:
    client: Any = there.store.client()
    return {
        name.decode(): client.llen(name)
        for name in client.keys("penstock.*")
        if client.type(name) == b"list"
    } | {name.decode(): client.hlen(name) for name in client.keys("unacked.*")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(MAX_SEED))
    parser.add_argument("--samples", type=Path, help="a file that gets all samples, as JSON")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(
        f"soak of {asked.minutes:g} minutes, --seed {asked.seed}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, logs in {folder}",
        flush=True,
    )
    problems = soak(folder, asked.minutes, asked.seed, asked.samples)
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
        print("every promise held")
        return 0
    print(f"\n{len(problems)} problems:", *problems, sep="\n- ")
    return 1


if __name__ == "__main__":
    sys.exit(main())
