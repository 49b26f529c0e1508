"""(s) Calls that wait: through the door and a fleet, beside the direct call to the same provider.

The provider answers after LATENCY_MS. Direct calls and calls through the door take turns, round by
round, from the same threads; CPU is that of door, worker, control and Redis together, by the calls
of the round.

    python -m benchmarks.direct_door [--beside CHECKOUT] [--setting NAME=VALUE]

weighs a change: other code, or other settings, has a fleet and a door of its own, and takes its
turn in each round.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.harness.callers import Calls, Request, calls, medians, weighed
from benchmarks.harness.door import door
from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import end_in_order, folder, provider, redis_server
from benchmarks.harness.report import Report, Row, show
from benchmarks.harness.rounds import OURS, Contender, arguments, contenders

WORKER = "penstock_workers"
LATENCY_MS = 20.0
CALLERS = (1, 16, 64)
CALLS, ROUNDS = 640, 5  # of a round, by all callers together; a quarter of it by one
QUICK_CALLS, QUICK_ROUNDS = 160, 2
PATH = "/v1/chat/completions"


def run(quick: bool) -> Report:
    return _measured(
        *((QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)), {OURS: Contender()}
    )


def _measured(number: int, rounds: int, contenders: Mapping[str, Contender]) -> Report:
    direct: dict[int, list[Calls]] = defaultdict(list)
    through: dict[tuple[str, int], list[Calls]] = defaultdict(list)
    with folder() as place, provider(LATENCY_MS) as answering, contextlib.ExitStack() as stack:
        port = urlsplit(answering.url).port or 0
        sides = {
            name: stack.enter_context(_side(place / f"side-{at}", one, answering.url))
            for at, (name, one) in enumerate(contenders.items())
        }
        for _ in range(rounds):
            for callers in CALLERS:
                each = calls_of_each(number, callers)
                direct[callers].append(calls(port, callers, each, chat))
                for name, (door_port, pids) in sides.items():
                    through[name, callers].append(weighed(door_port, callers, each, chat, pids))
    rows = [
        row
        for callers in CALLERS
        for name in contenders
        for row in _rows(name, callers, through[name, callers], direct[callers])
    ]
    return Report(
        f"(s) calls that wait, provider of {LATENCY_MS:g} ms, {rounds} round(s), medians", rows
    )


@contextlib.contextmanager
def _side(place: Path, one: Contender, url: str) -> Iterator[tuple[int, Sequence[int]]]:
    """The port of a door with a fleet behind it, and their processes, the door's first."""
    place.mkdir()
    with (
        redis_server(place) as server,
        fleet(
            place / "fleet",
            server,
            worker=WORKER,
            concurrency=128,
            base_url=url,
            checkout=one.checkout,
            settings=one.settings,
        ) as running,
        door(
            place, running.database_url, server.url, place / "fleet" / "penstock.toml", one.checkout
        ) as (port, pid),
    ):
        calls(port, 1, 10, chat)
        yield port, (pid, *running.pids)


def calls_of_each(number: int, callers: int) -> int:
    """Of each caller, where all of them make this number; a quarter of it where there is one."""
    return max(1, number // callers // (4 if callers == 1 else 1))


def chat(caller: int, at: int) -> Request:
    """Each says something else, so that no answer serves two."""
    text = f"Summarise review {caller}-{at}-{time.monotonic_ns()}"
    return Request(
        "POST", PATH, {"model": "sim-small", "messages": [{"role": "user", "content": text}]}
    )


def in_words(callers: int) -> str:
    return f"{callers} caller{'s' if callers > 1 else ''}"


def _rows(name: str, callers: int, through: list[Calls], direct: list[Calls]) -> Iterator[Row]:
    ours, theirs = medians(through), medians(direct)
    who = in_words(callers) if name == OURS else f"{name}: {in_words(callers)}"
    for what, mine, other in (
        ("p50", ours.p50_ms, theirs.p50_ms),
        ("p99", ours.p99_ms, theirs.p99_ms),
    ):
        yield Row(
            f"{who}: {what}", f"{mine:.1f} ms", f"{other:.1f} ms direct", f"+{mine - other:.1f} ms"
        )
    yield Row(
        f"{who}: CPU of a call", f"{ours.cpu_ms:.2f} ms", f"{ours.first_ms:.2f} ms of it the door's"
    )
    yield Row(f"{who}: calls a second", f"{ours.per_s:.0f}", f"{theirs.per_s:.0f} direct")


def main() -> None:
    given = arguments("direct_door", __doc__, CALLS, ROUNDS)
    end_in_order()
    show(_measured(given.items, given.rounds, contenders(given)))


if __name__ == "__main__":
    main()
