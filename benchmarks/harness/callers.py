"""Callers of an HTTP server: threads that each send a request, read its answer, and send the next.

Every wait is bounded."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.harness.ground import GroundError, usage
from benchmarks.harness.report import median

CALL_S = 90.0  # for one answer
ROUND_S = 300.0  # for all calls of a round


class Request(NamedTuple):
    """What is sent."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


Asks = Callable[[int, int], Request]
"""What a caller (its number) sends as its n-th call, from 0."""


class Calls(NamedTuple):
    """What a round of calls took."""

    p50_ms: float
    p99_ms: float
    per_s: float
    size: int = 0  # bytes of one body
    cpu_ms: float = 0.0  # of a call, of the processes that were looked at
    first_ms: float = 0.0  # of it, that of the first of these processes


def calls(ports: Sequence[int], callers: int, each: int, request: Asks) -> Calls:
    """``each`` calls of all ``callers``, who share the ports.

    Raises GroundError where an answer is not 200 or does not come in time."""
    took: list[float] = []
    sizes: list[int] = []
    failed: list[str] = []

    def call(number: int) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", ports[number % len(ports)], timeout=CALL_S
        )
        try:
            for at in range(each):
                began = time.perf_counter()
                status, said = _sent(connection, request(number, at))
                took.append((time.perf_counter() - began) * 1e3)
                sizes.append(len(said))
                if status != 200:
                    failed.append(f"{status}: {said[:200]!r}")
        except (OSError, http.client.HTTPException) as error:
            failed.append(repr(error))
        finally:
            connection.close()

    threads = [
        threading.Thread(target=call, args=(number,), daemon=True) for number in range(callers)
    ]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began + ROUND_S - time.perf_counter()))
    if any(thread.is_alive() for thread in threads):
        raise GroundError(
            f"{len(took)} of {callers * each} calls were answered within {ROUND_S:g} s"
        )
    if failed:
        raise GroundError(f"{len(failed)} calls of {callers * each} failed: {failed[0]}")
    return Calls(*quantiles(took), len(took) / (time.perf_counter() - began), round(median(sizes)))


def weighed(
    ports: Sequence[int], callers: int, each: int, request: Asks, pids: Sequence[int]
) -> Calls:
    """The same with the CPU of these processes, which live all the while."""
    before = [usage(pid).cpu_s for pid in pids]
    found = calls(ports, callers, each, request)
    spent = [
        (usage(pid).cpu_s - was) * 1e3 / (callers * each)
        for pid, was in zip(pids, before, strict=True)
    ]
    return found._replace(cpu_ms=sum(spent), first_ms=spent[0])


def medians(rounds: Sequence[Calls]) -> Calls:
    """Of each figure by itself."""
    first, *rest = (median(values) for values in zip(*rounds, strict=True))
    p99_ms, per_s, size, *cpu = rest
    return Calls(first, p99_ms, per_s, round(size), *cpu)


def quantiles(took: Sequence[float]) -> tuple[float, float]:
    """Their median and their 99th percentile, which of fewer than a hundred is the largest."""
    ordered = sorted(took)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def _sent(connection: http.client.HTTPConnection, request: Request) -> tuple[int, bytes]:
    body = None if request.body is None else json.dumps(request.body)
    headers = {} if body is None else {"content-type": "application/json"}
    connection.request(request.method, request.path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()
