"""(l) Calls that wait, and files, beside LiteLLM's proxy before the same provider: same callers,
same rounds, keys off in both.

The two do not do the same. LiteLLM passes a call on to the provider and keeps nothing. Penstock
commits it to the ledger first, queues it, has a worker make it under quota and retries, commits the
answer, and gives it back; the CPU is that of all its processes. LiteLLM passes a file on as well;
Penstock keeps it. One process of LiteLLM, one door, one worker, SQLite.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness import litellm
from benchmarks.harness.callers import Calls, calls, get, medians, quantiles, weighed
from benchmarks.harness.door import door
from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import folder, provider, redis_server, simulator, usage
from benchmarks.harness.report import Report, Row
from benchmarks.parts.direct_door import LATENCY_MS, WORKER, calls_of_each, chat, in_words
from benchmarks.parts.door_uploads import upload, written

CALLERS = (1, 16, 64)
CALLS, ROUNDS = 640, 5
QUICK_CALLS, QUICK_ROUNDS = 160, 2
# of a round: a file of 8 MB that many times, its list that many times
FILE_LINES, FILES, LISTS = (2_000, 5, 40)
OURS, THEIRS, DIRECT = "Penstock", "LiteLLM", "the provider itself"
FILE_LIST = "/v1/files?purpose=batch"


def run(quick: bool) -> Report:
    interpreter = litellm.python()
    if interpreter is None:
        note = (
            f"LiteLLM is not here: set {litellm.VARIABLE} to the Python of an environment that has "
            "litellm[proxy]"
        )
        return Report("(l) beside LiteLLM's proxy: not run", [], [note])
    number, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    with folder() as place, redis_server(place) as server, contextlib.ExitStack() as stack:
        answering = stack.enter_context(provider(LATENCY_MS))
        running = stack.enter_context(
            fleet(place / "fleet", server, worker=WORKER, concurrency=128, base_url=answering.url)
        )
        config = place / "fleet" / "penstock.toml"
        port, pid = stack.enter_context(door(place, running.database_url, server.url, config))
        with litellm.proxy(place, interpreter, answering.url) as theirs:
            found = _calls(
                port,
                (pid, *running.pids),
                theirs,
                urlsplit(answering.url).port or 0,
                number,
                rounds,
            )
        kept = stack.enter_context(simulator(0.0, 0.0))
        with litellm.proxy(place, interpreter, kept.url) as theirs:
            files = list(
                _files(place, {OURS: (port, pid), THEIRS: (theirs.port, theirs.pid)}, rounds)
            )
            version = theirs.version
    notes = [
        "Penstock: ledger, queue, worker, quota, ledger, answer; CPU of door, worker, control and "
        "Redis",
        f"LiteLLM {version}: passes calls and files on and keeps nothing; CPU of its process",
        "files: Penstock keeps them, LiteLLM sends them to `penstock simulate`, whose CPU is not "
        "counted",
    ]
    rows = [row for callers in CALLERS for row in _call_rows(callers, found)]
    return Report(
        f"(l) beside LiteLLM's proxy, provider of {LATENCY_MS:g} ms, {rounds} round(s)",
        [*rows, *files],
        notes,
    )


def _calls(
    port: int, pids: Sequence[int], theirs: litellm.Running, direct: int, number: int, rounds: int
) -> dict[tuple[str, int], list[Calls]]:
    found: dict[tuple[str, int], list[Calls]] = defaultdict(list)
    for warm in (port, theirs.port):
        calls(warm, 1, 10, chat)
    for turn in range(rounds):
        for callers in CALLERS:
            each = calls_of_each(number, callers)
            found[DIRECT, callers].append(calls(direct, callers, each, chat))
            turns = [(OURS, port, pids), (THEIRS, theirs.port, (theirs.pid,))]
            for name, at, looked_at in turns if turn % 2 else turns[::-1]:
                found[name, callers].append(weighed(at, callers, each, chat, looked_at))
    return found


def _call_rows(callers: int, found: dict[tuple[str, int], list[Calls]]) -> Iterator[Row]:
    ours, theirs, direct = (medians(found[name, callers]) for name in (OURS, THEIRS, DIRECT))
    who = in_words(callers)
    for name, mine, other, bare in (
        ("p50", ours.p50_ms, theirs.p50_ms, direct.p50_ms),
        ("p99", ours.p99_ms, theirs.p99_ms, direct.p99_ms),
    ):
        yield Row(
            f"{who}: {name} over the direct call",
            f"+{mine - bare:.1f} ms",
            f"+{other - bare:.1f} ms {THEIRS}",
            f"{mine / other:.2f}x of all",
        )
    yield Row(
        f"{who}: CPU of a call",
        f"{ours.cpu_ms:.2f} ms",
        f"{theirs.cpu_ms:.2f} ms {THEIRS}",
        f"{ours.cpu_ms / theirs.cpu_ms:.2f}x",
    )
    yield Row(
        f"{who}: calls a second",
        f"{ours.per_s:.0f}",
        f"{theirs.per_s:.0f} {THEIRS}, {direct.per_s:.0f} direct",
    )


def _files(place: Path, sides: dict[str, tuple[int, int]], rounds: int) -> Iterator[Row]:
    path = written(place / "file.jsonl", FILE_LINES)
    ups: dict[str, list[Calls]] = defaultdict(list)
    lists: dict[str, list[Calls]] = defaultdict(list)
    for _ in range(rounds):
        for name, (port, pid) in sides.items():
            ups[name].append(_uploads(partial(upload, port, path), pid))
            lists[name].append(weighed(port, 1, LISTS, get(FILE_LIST), (pid,)))
    size = path.stat().st_size / 2**20
    for what, found in (
        (f"upload of {size:.0f} MiB", ups),
        (f"list of {rounds * FILES} files", lists),
    ):
        ours, theirs = medians(found[OURS]), medians(found[THEIRS])
        yield Row(
            f"{what}: p50, slowest",
            f"{ours.p50_ms:.1f}, {ours.p99_ms:.1f} ms",
            f"{theirs.p50_ms:.1f}, {theirs.p99_ms:.1f} ms {THEIRS}",
            f"{ours.p50_ms / theirs.p50_ms:.2f}x",
        )
        yield Row(
            f"{what}: CPU",
            f"{ours.cpu_ms:.1f} ms",
            f"{theirs.cpu_ms:.1f} ms {THEIRS}",
            f"{ours.cpu_ms / theirs.cpu_ms:.2f}x",
        )


def _uploads(send: Callable[[], object], pid: int) -> Calls:
    took, before, began = list[float](), usage(pid).cpu_s, time.perf_counter()
    for _ in range(FILES):
        one = time.perf_counter()
        send()
        took.append((time.perf_counter() - one) * 1e3)
    spent = (usage(pid).cpu_s - before) * 1e3 / FILES
    return Calls(*quantiles(took), FILES / (time.perf_counter() - began), 0, spent, spent)
