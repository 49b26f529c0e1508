"""End to end: four worker processes of the real fleet, one quota, and `penstock simulate` that
refuses and breaks."""

from __future__ import annotations

import contextlib
import json
import math
import random
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import redis

from benchmarks.harness.fleet import READY_TIMEOUT_S
from benchmarks.harness.ground import GroundError, RunningRedis, folder, process, redis_server
from benchmarks.pacing.case import TOKENS_PER_REQUEST
from benchmarks.pacing.figures import jain, utilisation
from benchmarks.pacing.provider import MINUTE_S
from benchmarks.pacing.sizes import LONG_TAIL, Sizes
from penstock_ledger import Meta, RedisLedger, open_database
from penstock_producer import Producer

FLEET = "fleet"
WORKERS = 4
CONCURRENCY = 64
PER_SECOND = 40.0
MEAN_TOKENS, LARGEST_TOKENS = 700.0, 10_000.0
ERROR_RATE = 0.03
DEPTH_S = 10.0
WARM_UP_S = 8.0
CHARS_PER_TOKEN = 4
MAX_TOKENS = 32
QUOTA_KEY = "{q:default}"
LOOK_EACH_S = 0.1
LOG_END_CHARS = 2000
TARGET_UTILISATION, TARGET_JAIN, TARGET_CALLS = 0.98, 0.99, 0.5


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Figures of the measured time.

    ``jain`` is NaN where workers do not publish what they were granted."""

    seconds: float
    sent: int
    utilisation: float
    refused: int
    errors: int  # injected 500s, charged
    jain: float
    granted: tuple[int, ...]
    calls_per_item: float


def run_fleet(seconds: float) -> dict[str, Any]:
    """Measure, show, and hand back the figures."""
    with (
        folder() as place,
        redis_server(place) as server,
        _simulator(place) as url,
        _fleet(place, server, url),
    ):
        outcome = _measure(place, server, url, seconds)
    _show(outcome)
    return asdict(outcome)


def _measure(place: Path, server: RunningRedis, url: str, seconds: float) -> FleetOutcome:
    items = round(PER_SECOND * (WARM_UP_S + seconds + READY_TIMEOUT_S))
    with Producer(database_url=_database_url(place)) as producer:
        producer.submit(_documents(place / "job.jsonl", items), {})
        _wait(lambda: _stats(url)["requests"] > 0, "no request reached the simulator")
        time.sleep(WARM_UP_S)
        with _quota_calls(server) as calls:
            before, granted_before, calls_before = _stats(url), _granted(server), len(calls)
            began = time.monotonic()
            time.sleep(seconds)
            after, granted, made = _stats(url), _granted(server), len(calls) - calls_before
            took_s = time.monotonic() - began
    refused = _status(after, "429") - _status(before, "429")
    sent = after["requests"] - before["requests"]
    shares = tuple(count - granted_before.get(name, 0) for name, count in granted.items())
    return FleetOutcome(
        seconds=round(took_s, 3),
        sent=sent,
        utilisation=utilisation(sent - refused, PER_SECOND * took_s),
        refused=refused,
        errors=_status(after, "500") - _status(before, "500"),
        jain=jain(shares) if shares else math.nan,
        granted=shares,
        calls_per_item=made / max(1, sent - refused),
    )


def _show(outcome: FleetOutcome) -> None:
    print(
        f"fleet: {WORKERS} worker processes, {PER_SECOND:g} requests/s, mixed sizes, "
        f"{ERROR_RATE:.0%} 500s, bucket of {DEPTH_S:g} s, {outcome.seconds:.0f} s measured, "
        f"{outcome.sent} sent, {outcome.errors} 500s, granted per process {list(outcome.granted)}"
    )
    for what, measured, target, met in (
        (
            "utilisation",
            f"{outcome.utilisation:.1%}",
            ">= 98%",
            outcome.utilisation >= TARGET_UTILISATION,
        ),
        ("429s", f"{outcome.refused}", "<= 0", outcome.refused == 0),
        ("Jain over processes", f"{outcome.jain:.3f}", ">= 0.99", outcome.jain >= TARGET_JAIN),
        (
            "Redis calls of the quota per item",
            f"{outcome.calls_per_item:.2f}",
            "<= 0.5",
            outcome.calls_per_item <= TARGET_CALLS,
        ),
    ):
        print(f"  {'met' if met else 'NOT MET':8}{what}: {measured} (target {target})")


@contextlib.contextmanager
def _simulator(place: Path) -> Iterator[str]:
    """With limits in a strict bucket, and with answers that fail."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = {
        "port": port,
        "rpm": PER_SECOND * MINUTE_S,
        "tpm": PER_SECOND * MINUTE_S * TOKENS_PER_REQUEST,
        "depth-s": DEPTH_S,
        "charge": "actual",
        "error-rate": ERROR_RATE,
        "latency-ms": 200,
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    with process([sys.executable, "-m", "penstock_simulate", *flags], log=place / "simulate.log"):
        url = f"http://127.0.0.1:{port}"
        _wait(lambda: bool(_stats(url)), "the simulator does not answer")
        yield url


@contextlib.contextmanager
def _fleet(place: Path, server: RunningRedis, url: str) -> Iterator[None]:
    """A control process and the workers, as users start them."""
    with contextlib.closing(open_database(_database_url(place))) as database:
        database.migrate()
    (config := place / "penstock.toml").write_text("")
    rpm = PER_SECOND * MINUTE_S
    provider = {"base_url": url + "/v1", "rpm": rpm, "tpm": rpm * TOKENS_PER_REQUEST}
    variables = {
        "PENSTOCK_CONFIG": str(config),
        "PENSTOCK_REDIS_URL": server.url,
        "PENSTOCK_DATABASE_URL": _database_url(place),
        "PENSTOCK_CONCURRENCY": str(CONCURRENCY),
        "PENSTOCK_CONTROL": "false",
        "PENSTOCK_PROVIDERS": orjson.dumps({"default": provider}).decode(),
    }
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "penstock_workers"]
        stack.enter_context(
            process([*command, "control"], variables=variables, log=place / "control.log")
        )
        for number in range(WORKERS):
            log = place / f"worker-{number}.log"
            stack.enter_context(process([*command, "api"], variables=variables, log=log))
        with contextlib.closing(open_database(_database_url(place))) as database:
            hot = RedisLedger(server.client(), Meta(database).epoch())
            _wait(
                lambda: len(hot.workers()) == WORKERS,
                "not all workers reported",
                log=place / "worker-0.log",
            )
        yield


@contextlib.contextmanager
def _quota_calls(server: RunningRedis) -> Iterator[list[float]]:
    """Times of the script calls on the quota's keys, as the server sees them: the fleet uses one
    Redis for everything."""
    seen: list[float] = []
    client = server.client()
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]  # untyped in redis-py

        def listen() -> None:
            with contextlib.suppress(redis.RedisError, OSError, ValueError, AttributeError):
                while True:
                    told = monitor.next_command()
                    command = told["command"]
                    if (
                        told["client_type"] != "lua"
                        and command.startswith("EVALSHA")
                        and QUOTA_KEY in command
                    ):
                        seen.append(told["time"])

        threading.Thread(target=listen, daemon=True, name="quota calls").start()
        yield seen


def _granted(server: RunningRedis) -> dict[str, int]:
    """Tickets of each process so far, from what they publish beside the quota."""
    rows: dict[bytes, bytes] = server.client().hgetall(f"penstock:{QUOTA_KEY}:s")  # type: ignore[assignment]
    return {name.decode(): int(json.loads(text).get("granted", 0)) for name, text in rows.items()}


def _documents(path: Path, number: int) -> Path:
    rng, sizes = random.Random(0), Sizes(LONG_TAIL, MEAN_TOKENS, LARGEST_TOKENS)
    with path.open("wb") as file:
        for n in range(number):
            text = "four" * math.ceil(sizes.draw(rng).prompt * CHARS_PER_TOKEN / 4)
            body = {
                "model": "sim-small",
                "max_tokens": MAX_TOKENS,
                "messages": [{"role": "user", "content": text}],
            }
            line = {
                "custom_id": f"d{n:06d}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write(orjson.dumps(line) + b"\n")
    return path


def _stats(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url + "/stats", timeout=5) as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats


def _status(stats: dict[str, Any], status: str) -> int:
    return int(stats["by_status"].get(status, 0))


def _wait(ready: Any, otherwise: str, *, log: Path | None = None) -> None:
    """Raises GroundError with the end of ``log``: the folder is gone by the time that the message
    is read."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if ready():
                return
        time.sleep(LOOK_EACH_S)
    end = log.read_text()[-LOG_END_CHARS:] if log is not None and log.exists() else ""
    raise GroundError(f"{otherwise} within {READY_TIMEOUT_S:.0f} s\n{end}")


def _database_url(place: Path) -> str:
    return f"sqlite:///{place / 'ledger.db'}"
