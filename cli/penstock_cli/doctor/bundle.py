"""The file of `penstock doctor --report`: what a person attaches to a question or a bug report.

It is text that can be read before it is given away: versions, settings, the doctor's findings, how
the stores stand, and the last errors. No document and no answer is in it, every line goes through
the redaction, and a part that cannot be had says why in its place.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock_cli.connect import books, redis_url, without_password
from penstock_cli.doctor.worker import REDIS_TIMEOUT_S
from penstock_cli.errors import UsageProblem
from penstock_cli.failures import message
from penstock_cli.files import STDOUT
from penstock_cli.settings import names_that_count
from penstock_cli.state import StateFolder, private_opener
from penstock_ledger.redaction import HIDDEN, is_secret_name, redact
from penstock_producer.reporting.text import count, counts_in_words, duration, one_line

if TYPE_CHECKING:
    import redis

    from penstock_cli.doctor.worker import Finding
    from penstock_ledger.model import Job

LINE_CHARS: Final = 400
# of a part, so that one with thousands of jobs, settings or workers does not hide the others
PART_LINES: Final = 200
# what trackers take as one attachment without a question, and a person still reads
MAX_BYTES: Final = 256 * 1024
JOBS: Final = 20  # the newest: what is asked about is among them
CAUSES: Final = 20  # of failing calls, of each provider
REFUSALS: Final = 10
LOG_LINES: Final = 20  # of each log of a state folder
LOG_TAIL_BYTES: Final = 1024 * 1024  # of a log are looked through
QUERY_VALUE: Final = re.compile(r"([?&][^=&]*=)[^&]+")
WARNED: Final = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) ")

HEAD: Final = """\
# Report of penstock doctor

Read it before you attach it. Passwords and keys are taken out; it has no documents and no answers.
It names hosts, folders, buckets, models and jobs, and repeats what servers said of failures.
"""


def check_place(place: str) -> None:
    """Raise UsageProblem where a report cannot be put, before anything is looked at."""
    if place == STDOUT:
        return
    path = Path(place)
    if path.is_dir() or not path.name:
        raise UsageProblem(f"--report {place} is a folder; name a file in it")
    if path.exists() or path.is_symlink():
        raise UsageProblem(
            f"--report {place} is there already, and is not overwritten: give another name"
        )
    if not path.parent.is_dir():
        raise UsageProblem(f"--report {place}: there is no folder {path.parent}")


def write(place: str, text: str) -> None:
    """Write the report where nothing is yet, for its owner's eyes. Raises UsageProblem."""
    if place == STDOUT:
        sys.stdout.write(text)
        return
    try:
        with open(place, "x", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
    except OSError as error:
        raise UsageProblem(f"--report {place}: {error.strerror or error}") from error


def report(findings: Sequence[Finding], state: Path | None, *, now: float) -> str:
    """Return the report: the findings, and all else that it looks for itself."""
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    parts = [f"{HEAD}\nMade {made}.\n"]
    for title, look in _parts(findings, state, now):
        parts.append(f"\n## {title}\n\n{_block(_lines(look))}")
    whole = "".join(parts)
    home = str(Path.home())
    if len(home) > 1:
        whole = whole.replace(home, "~")
    encoded = whole.encode("utf-8", "replace")
    if len(encoded) <= MAX_BYTES:
        return whole
    cut = f"\n\nThe rest was left out: a report has at most {count(MAX_BYTES)} bytes.\n"
    return encoded[: MAX_BYTES - len(cut)].decode("utf-8", "ignore") + cut


_Look = Callable[[], Iterable[str]]


def _parts(
    findings: Sequence[Finding], state: Path | None, now: float
) -> Iterator[tuple[str, _Look]]:
    """Yield each part with its title; a store that is down costs one of them its time-out."""
    yield "Versions", _versions
    yield "Settings that differ from their defaults", _settings
    yield "Variables that are set (names only)", names_that_count
    yield "Findings", lambda: _found(findings)
    yield "Database and its newest jobs", lambda: _database(state, now)
    yield "Redis, and what fails lately", lambda: _redis(state, now)
    if state is not None:
        yield "Warnings and errors in the logs", lambda: _logs(state)


def _lines(look: _Look) -> Iterator[str]:
    """Yield the lines of a part as they may be shown; one that fails ends it with the reason."""
    try:
        yield from (one_line(redact(line), LINE_CHARS) for line in look())
    except Exception as error:  # a store that is down, a setting that is refused: it is a report
        yield one_line(redact(f"not to be had: {message(error)}"), LINE_CHARS)


def _block(lines: Iterable[str]) -> str:
    """Return lines as a block of Markdown that no line of them can end."""
    shown = list(islice(lines, PART_LINES + 1))
    if len(shown) > PART_LINES:
        shown[PART_LINES:] = [f"… and more: {PART_LINES} lines are shown"]
    return "".join(f"    {line}\n" for line in shown or ["nothing"])


def _versions() -> Iterator[str]:
    from penstock_cli.version import version_line

    yield version_line()
    yield f"python {sys.version}"
    yield f"system {platform.platform()}, libc {' '.join(platform.libc_ver())}"
    for name in sorted({_name(one) for one in metadata.requires("penstock") or ()}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def _settings() -> Iterator[str]:
    """Yield the settings of workers and doors, each once, by name."""
    from penstock_gateway import GatewaySettings
    from penstock_workers.settings import WorkerSettings

    seen: dict[str, str] = {}
    for role in (WorkerSettings, GatewaySettings):
        seen |= dict(_flat(role.load().model_dump(mode="json", exclude_defaults=True)))
    yield from (f"{name} = {value}" for name, value in sorted(seen.items()))


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if is_secret_name(name):
            yield name, HIDDEN
        elif isinstance(value, dict) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, str):
            shown = without_password(value) if "://" in value else value
            # no list of names knows each service's own word for a key
            is_web = shown.startswith(("http://", "https://"))
            yield name, QUERY_VALUE.sub(rf"\1{HIDDEN}", shown) if is_web else shown
        else:
            yield name, json.dumps(value)


def _found(findings: Iterable[Finding]) -> Iterator[str]:
    for one in findings:
        yield f"{one.verdict}: {one.subject}: {one.seen}"
        if one.fix:
            yield f"- {one.fix}"


def _database(state: Path | None, now: float) -> Iterator[str]:
    from penstock_ledger import HEAD as NEWEST

    with books(state) as ledger:
        yield f"schema {ledger.database.revision()}; this release has {NEWEST}"
        for job in ledger.jobs.list(limit=JOBS):
            counts = ledger.outcomes.counts(job.job_id)
            total = "?" if job.total is None else count(job.total)
            yield (
                f"{job.job_key} ({job.job_id}): {job.state}, lane {job.lane}, generation "
                f"{job.generation}, {total} documents, {count(counts.succeeded)} succeeded, "
                f"{count(counts.dead)} dead, {count(counts.calls)} calls, made "
                f"{duration(max(0.0, now - job.created_at))} ago"
            )
            yield from _troubles(job, counts.dead_by_reason)


def _troubles(job: Job, dead_by_reason: Mapping[str, int]) -> Iterator[str]:
    if job.reason:
        yield f"- why: {job.reason}"
    if dead_by_reason:
        yield f"- dead letters: {counts_in_words(dead_by_reason)}"


def _redis(state: Path | None, now: float) -> Iterator[str]:
    """Yield how the queues stand, who works on them, and what fails; without SQL, too."""
    from penstock_ledger import RedisAddress, RedisLedger
    from penstock_producer.feed.queues import queue_name
    from penstock_producer.job.lanes import LANES

    with RedisAddress.parse(redis_url(state)).connect(
        socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
    ) as client:
        ledger = RedisLedger(client, "")  # nothing is asked that needs the epoch
        memory = ledger.memory()
        limit = count(memory.maxmemory) if memory.maxmemory else "unlimited"
        yield f"memory: {count(memory.used)} bytes of {limit}, {memory.policy}"
        yield f"last rebuild: {ledger.last_rebuild() or 'none'}"
        yield f"messages that no worker could read: {ledger.parked_unknown()}"
        for lane in LANES:
            for queue, depth in ledger.depths(queue_name(lane)).items():
                if any(depth):
                    yield f"queue {queue}: {counts_in_words(depth._asdict())}"
        for worker in ledger.workers():
            about = json.dumps(worker.info, sort_keys=True)
            yield f"worker {worker.name}, seen {worker.seconds_ago:.0f} s ago: {about}"
        yield from _failing(client, now)


def _failing(client: redis.Redis, now: float) -> Iterator[str]:
    from penstock_ledger import CauseBook
    from penstock_producer.reporting.reasons import cause_line
    from penstock_workers.celery_app.door_records import TaskRecords
    from penstock_workers.settings import DEFAULT_PROVIDER, WorkerSettings

    for provider in sorted({DEFAULT_PROVIDER, *WorkerSettings.load().providers}):
        for cause in CauseBook(client).of(provider)[:CAUSES]:
            yield f"calls to {provider} fail: job {cause.job_id}: {cause_line(cause, now)}"
    for one in islice(TaskRecords(client).refusals(), REFUSALS):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.at))
        yield f"task {one.task} {one.id} was refused at {when}: {one.reason}"


def _logs(state: Path) -> Iterator[str]:
    for path in sorted(StateFolder.existing(state).logs.glob("*.log")):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            text = file.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
        warned = deque(filter(WARNED.match, text.splitlines()), maxlen=LOG_LINES)
        yield f"{path.name}: {len(warned)} shown"
        yield from (f"- {line}" for line in warned)
