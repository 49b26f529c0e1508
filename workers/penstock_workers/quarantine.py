"""Suspects run alone. An item that was in flight twice when its process died is inferred in a child process of its own.

If the child survives, the item was innocent (it only flew beside the culprit) and its answer counts as any other. If the
child dies, there is no doubt left: after ``CHILD_DEATHS_ALLOWED`` deaths the item becomes the dead letter `worker_crashed`,
and the hundreds of items in the parent never noticed.

The child is `python -m penstock_workers.quarantine LANE`; parent and child speak one JSON object per line.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any, Protocol

import orjson

from penstock_workers.answer import Answer, NoAnswer, Tried
from penstock_workers.failpoints import Failpoints
from penstock_workers.flight import Flight
from penstock_workers.lanes.base import Lane, Request
from penstock_workers.settings import MAX_ANSWER_BYTES, WorkerSettings

log = logging.getLogger(__name__)

SUSPECT_AFTER_CRASHES = 2  # one crash is bad luck beside a culprit or a spot notice; two make a suspect
CHILD_DEATHS_ALLOWED = 2  # one may be the machine's doing (out of memory beside us), two are the item's
CHILDREN_MAX = 2  # each some 60 MB and most of a second of a core to start; whatever flew in both crashes comes here
CHILD_GRACE_S = 15.0  # on top of the item's own timeout: the child's start
LINE_LIMIT = MAX_ANSWER_BYTES * 2  # base64 grows an answer by a third; anything longer is not ours


class ChildDied(Exception):
    """The process that ran nothing but this item is dead."""


class Quarantine(Protocol):
    """Where suspects are inferred, so that a culprit takes nobody with it."""

    async def infer(self, flight: Flight) -> Tried | None:
        """The item's answer, or None when it is found guilty: whatever runs it dies."""
        ...

    async def close(self) -> None: ...


class ChildQuarantine:
    """A few suspects at a time, each alone in a child process; a child that has answered is kept for the next one."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._places = asyncio.Semaphore(CHILDREN_MAX)
        self._idle: list[Process] = []  # bounded by the places

    async def infer(self, flight: Flight) -> Tried | None:
        """The item's answer, or None when it killed its process ``CHILD_DEATHS_ALLOWED`` times."""
        async with self._places:
            for _ in range(CHILD_DEATHS_ALLOWED):
                try:
                    return await self._ask(flight.prepared.request, flight.key.doc_id)
                except ChildDied:
                    continue
            return None

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())

    async def _ask(self, request: Request, doc_id: str) -> Tried:
        child = await self._living_child()
        try:
            line = await _converse(child, request, doc_id)
        except TimeoutError:
            await _end(child)
            return NoAnswer("timeout", "the quarantined item did not end in its time", round(request.timeout_s * 1000))
        except BaseException:  # cancelled: the child may still answer, and must not answer the next suspect
            await _end(child)
            raise
        if not line:
            await _end(child)
            raise ChildDied
        self._idle.append(child)
        return _decode_tried(line)

    async def _living_child(self) -> Process:
        while self._idle:
            child = self._idle.pop()
            if child.returncode is None:
                return child
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", __name__, self._lane, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT
        )


async def _converse(child: Process, request: Request, doc_id: str) -> bytes:
    """The child's answer; nothing when it died. Raises TimeoutError."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(_encode_request(request, doc_id))
    try:
        await child.stdin.drain()
        async with asyncio.timeout(request.timeout_s + CHILD_GRACE_S):
            return await child.stdout.readline()
    except ConnectionError:
        return b""


async def _end(child: Process) -> None:
    if child.returncode is None:
        child.kill()
        await child.wait()


def _encode_request(request: Request, doc_id: str) -> bytes:
    fields = {
        "tag": request.tag,
        "provider": request.provider,
        "endpoint": request.endpoint,
        "body": request.body.decode(),
        "timeout_s": request.timeout_s,
        "schema": request.schema,
        "priority": request.priority,
        "on_overflow": request.on_overflow,
    }
    return orjson.dumps({"request": fields, "doc_id": doc_id}, option=orjson.OPT_APPEND_NEWLINE)


def _decode_request(line: bytes) -> tuple[Request, str]:
    asked = orjson.loads(line)
    fields = asked["request"]
    return Request(**(fields | {"body": fields["body"].encode()})), asked["doc_id"]


def _encode_tried(tried: Tried) -> bytes:
    if isinstance(tried, Answer):
        fields: dict[str, Any] = {
            "status": tried.status,
            "headers": {str(name): value for name, value in tried.headers.items()},  # aiohttp's names are no plain str
            "body": base64.b64encode(tried.body).decode(),
            "latency_ms": tried.latency_ms,
        }
    else:
        fields = {
            "failure": tried.failure,
            "detail": tried.detail,
            "latency_ms": tried.latency_ms,
            "sent": tried.sent,
        }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _decode_tried(line: bytes) -> Tried:
    fields = orjson.loads(line)
    if "failure" in fields:
        return NoAnswer(**fields)
    return Answer(fields["status"], fields["headers"], base64.b64decode(fields["body"]), fields["latency_ms"])


async def _serve(lane_name: str) -> None:
    """The child: one request per line in, one answer per line out, until the parent closes the pipe or is gone.

    Signals to end that reach the whole process group are for the parent: a child that obeyed would look like a death.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from penstock_workers.lanes.make import make_lane

    settings = WorkerSettings.load(lane=lane_name)
    failpoints = Failpoints.parse(settings.failpoints)
    lane = make_lane(settings)
    await lane.start()
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
            request, doc_id = _decode_request(line)
            failpoints.hit("infer", doc_id)
            answer = await _answer(lane, request)
            try:
                sys.stdout.buffer.write(answer)
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                os._exit(0)  # the parent is gone, and whoever holds the item now asks anew
    finally:
        await lane.close()


async def _answer(lane: Lane, request: Request) -> bytes:
    """An exception is no death: only what ends the process without one is held against the item."""
    try:
        prepared = await lane.prepare(request)
        return _encode_tried(prepared.refused or await lane.infer(prepared))
    except Exception as error:
        log.exception("item %s: a bug of ours, met alone; it is retried like a server error", request.tag)
        return _encode_tried(NoAnswer("unexpected_error", f"{type(error).__name__}: {error}", 0))


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
