"""(s) Calls that wait: through the door and a fleet, beside the direct call to the same provider.

The provider answers after LATENCY_MS. Direct calls and calls through the door take turns, round by
round, from the same threads; CPU is that of door, worker, control and Redis together, by the calls
of the round.

    python -m benchmarks.direct_door [--beside CHECKOUT] [--setting NAME=VALUE]

weighs a change: other code, or other settings, has a fleet and doors of its own, and takes its turn
in each round. `--doors 3 --postgres --callers 1 16 64 256` are other grounds, and `--proxy` another
server between callers and provider, as "litellm --model openai/m --api_base {url} --port {port}".
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.harness.callers import Calls, Request, calls, medians, weighed
from benchmarks.harness.door import door
from benchmarks.harness.fleet import fleet
from benchmarks.harness.ground import (
    GroundError,
    end_in_order,
    folder,
    free_port,
    process,
    redis_server,
)
from benchmarks.harness.report import Report, Row, show
from benchmarks.harness.rounds import (
    OURS,
    Contender,
    Ground,
    answering,
    arguments,
    contenders,
    databases,
    ground_of,
)

WORKER = "penstock_workers"
LATENCY_MS = 20.0
CONCURRENCY = 128
PROXY_START_S = 120.0
CALLERS = (1, 16, 64)
CALLS, ROUNDS = 640, 5  # of a round, by all callers together; a quarter of it by one
QUICK_CALLS, QUICK_ROUNDS = 160, 2
PATH = "/v1/chat/completions"


def run(quick: bool) -> Report:
    number, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    return _measured(number, rounds, {OURS: Contender()}, Ground(CONCURRENCY, LATENCY_MS))


def _measured(
    number: int,
    rounds: int,
    contenders: Mapping[str, Contender],
    ground: Ground,
    *,
    callers_of: Sequence[int] = CALLERS,
    doors: int = 1,
    proxy: str | None = None,
) -> Report:
    direct: dict[int, list[Calls]] = defaultdict(list)
    through: dict[tuple[str, int], list[Calls]] = defaultdict(list)
    with folder() as place, contextlib.ExitStack() as stack:
        url = stack.enter_context(answering(ground)).url
        provider_port = urlsplit(url).port or 0
        new_database = databases(stack) if ground.postgres else None
        sides = {
            name: stack.enter_context(
                _side(
                    place / f"side-{at}",
                    one,
                    url,
                    ground.concurrency,
                    doors,
                    new_database and new_database(),
                )
            )
            for at, (name, one) in enumerate(contenders.items())
        }
        if proxy is not None:
            sides["proxy"] = stack.enter_context(_proxy(proxy, url, place / "proxy.log"))
        for _ in range(rounds):
            for callers in callers_of:
                each = calls_of_each(number, callers)
                direct[callers].append(calls([provider_port], callers, each, chat))
                for name, (ports, pids) in sides.items():
                    through[name, callers].append(weighed(ports, callers, each, chat, pids))
    rows = [
        row
        for callers in callers_of
        for name in sides
        for row in _rows(name, callers, through[name, callers], direct[callers])
    ]
    where = f"{doors} door(s), {'PostgreSQL' if ground.postgres else 'SQLite'}"
    return Report(
        f"(s) calls that wait, provider of {ground.latency_ms:g} ms, {where}, {rounds} round(s), "
        "medians",
        rows,
    )


Side = tuple[Sequence[int], Sequence[int]]
"""The ports that callers may ask, and the processes behind them, a door's first."""


@contextlib.contextmanager
def _side(
    place: Path,
    one: Contender,
    url: str,
    concurrency: int,
    doors: int,
    database_url: str | None,
) -> Iterator[Side]:
    place.mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(redis_server(place))
        running = stack.enter_context(
            fleet(
                place / "fleet",
                server,
                worker=WORKER,
                concurrency=concurrency,
                base_url=url,
                checkout=one.checkout,
                settings=one.settings,
                database_url=database_url,
            )
        )
        config = place / "fleet" / "penstock.toml"
        ports, pids = zip(
            *(
                stack.enter_context(
                    door(place, running.database_url, server.url, config, one.checkout)
                )
                for _ in range(doors)
            ),
            strict=True,
        )
        calls(ports, doors, 10, chat)
        yield ports, (*pids, *running.pids)


@contextlib.contextmanager
def _proxy(command: str, url: str, log: Path) -> Iterator[Side]:
    """Another server, which was given the provider's address and a port."""
    port = free_port()
    words = shlex.split(command.format(url=url, port=port))
    with process(words, log=log) as running:
        deadline = time.monotonic() + PROXY_START_S
        while True:
            if running.poll() is not None or time.monotonic() > deadline:
                raise GroundError(f"the proxy answers nothing: {log.read_text()[-2000:]}")
            with contextlib.suppress(GroundError):
                calls([port], 1, 10, chat)
                break
            time.sleep(1)
        yield (
            [port],
            [running.pid, *(one.pid for one in psutil.Process(running.pid).children(True))],
        )


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
    parser = arguments("direct_door", __doc__, CALLS, ROUNDS, LATENCY_MS)
    parser.add_argument(
        "--callers", type=int, nargs="+", default=CALLERS, help="how many at a time (%(default)s)"
    )
    parser.add_argument("--doors", type=int, default=1, help="that callers share (%(default)s)")
    parser.add_argument("--proxy", metavar="COMMAND", help="that takes its turn, too")
    given = parser.parse_args()
    end_in_order()
    show(
        _measured(
            given.items,
            given.rounds,
            contenders(given),
            ground_of(given),
            callers_of=given.callers,
            doors=given.doors,
            proxy=given.proxy,
        )
    )


if __name__ == "__main__":
    main()
