"""Probes as Kubernetes defines them, really asked: a command, an HTTP GET, a TCP connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

Answer = str | None  # why the answer is no; None when it is yes
# a command in the container: its exit code and output
Run = Callable[[Sequence[str]], Awaitable[tuple[int, str]]]


@dataclass(frozen=True)
class Target:
    """The container that is asked."""

    address: str
    ports: Mapping[str, int]  # by name
    run: Run

    def port(self, given: int | str) -> int:
        return self.ports[given] if isinstance(given, str) and not given.isdecimal() else int(given)


@dataclass(frozen=True)
class Probe:
    """With Kubernetes' defaults; the time between two questions is divided by the kubelet's pace,
    and nothing else is."""

    handler: Mapping[str, Any]
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int
    grace_s: int | None

    @classmethod
    def read(cls, found: Mapping[str, Any], pace: float) -> Self:
        return cls(
            handler=found,
            initial_delay_s=found.get("initialDelaySeconds", 0) / pace,
            period_s=found.get("periodSeconds", 10) / pace,
            timeout_s=found.get("timeoutSeconds", 1),
            success_threshold=found.get("successThreshold", 1),
            failure_threshold=found.get("failureThreshold", 3),
            grace_s=found.get("terminationGracePeriodSeconds"),
        )

    async def ask(self, target: Target) -> Answer:
        return await ask(self.handler, target, self.timeout_s)


async def ask(handler: Mapping[str, Any], target: Target, timeout_s: float) -> Answer:
    """Of probes and of lifecycle hooks."""
    (kind,) = handler.keys() & ASK.keys()
    try:
        async with asyncio.timeout(timeout_s):
            return await ASK[kind](handler[kind], target)
    except (TimeoutError, OSError, aiohttp.ClientError) as error:
        return f"{kind}: {str(error) or f'no answer within {timeout_s:g} s'}"


async def _exec(action: Mapping[str, Any], target: Target) -> Answer:
    status, output = await target.run(action["command"])
    return None if status == 0 else f"exit status {status}: {output}"


async def _http_get(action: Mapping[str, Any], target: Target) -> Answer:
    url = f"{action.get('scheme', 'HTTP').lower()}://{action.get('host', target.address)}:{target.port(action['port'])}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders", ())}
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            url + action.get("path", "/"), headers=headers, allow_redirects=False, ssl=False
        ) as answer,
    ):
        return None if 200 <= answer.status < 400 else f"HTTP status {answer.status}"


async def _tcp_socket(action: Mapping[str, Any], target: Target) -> Answer:
    _, writer = await asyncio.open_connection(
        action.get("host", target.address), target.port(action["port"])
    )
    writer.close()
    return None


async def _sleep(action: Mapping[str, Any], _: Target) -> Answer:
    await asyncio.sleep(action["seconds"])
    return None


ASK: Mapping[str, Callable[[Any, Target], Awaitable[Answer]]] = {
    "exec": _exec,
    "httpGet": _http_get,
    "tcpSocket": _tcp_socket,
    "sleep": _sleep,  # of lifecycle hooks
}
