"""The HTTP doors as tests start them: a real uvicorn on a free port, with a database and a folder
of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fleet import until
from forked import Penstock
from servers import free_port

from penstock_gateway.serve import door_server
from penstock_gateway.settings import GatewayFields, GatewaySettings
from penstock_ledger import ApiKeyStore, KeyLimits, NewApiKey, open_database

START_TIMEOUT_S = 180.0  # a machine that is busy with other tests starts nothing within a minute


def door_settings(
    folder: Path, redis_url: str = "redis://127.0.0.1:1/0", **fields: Any
) -> GatewaySettings:
    """Settings of a door whose database and files lie in ``folder``; ``fields`` are those of
    `gateway.*`."""
    door = GatewayFields(port=free_port(), files=str(folder / "files"), **fields)
    return GatewaySettings(
        database_url=f"sqlite:///{folder}/ledger.db", redis_url=redis_url, gateway=door
    )


@contextlib.contextmanager
def door(settings: GatewaySettings, *, extra: Sequence[APIRouter] = ()) -> Iterator[str]:
    """A door that answers, in a thread of this process; yields its URL."""
    server = door_server(settings, extra=extra)
    thread = threading.Thread(target=server.run, name="door")
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), START_TIMEOUT_S, "the door starts")
        assert thread.is_alive(), "the door has ended while it was starting"
        yield f"http://127.0.0.1:{settings.gateway.port}"
    finally:
        server.end()
        thread.join(START_TIMEOUT_S)
        assert not thread.is_alive(), "the door did not end"


@contextlib.contextmanager
def door_process(
    settings: GatewaySettings,
    *,
    program: Path | None = None,
    log: Path | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A door in a process of its own, which a test may kill; yields its URL and the process.

    It has all fields of ``settings`` that were given. ``program`` is what runs `gateway` in the
    place of `penstock`; ``log`` takes what it says.
    """
    given = settings.model_dump(mode="json", exclude_unset=True)
    said = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
    }
    surroundings = os.environ | {f"PENSTOCK_{name.upper()}": value for name, value in said.items()}
    with contextlib.ExitStack() as stack:
        out = None if log is None else stack.enter_context(log.open("ab"))
        process = Penstock(["gateway"], program=program, env=surroundings, stdout=out, stderr=out)
        url = f"http://127.0.0.1:{settings.gateway.port}"
        try:
            until(
                lambda: process.poll() is not None or lives(url), START_TIMEOUT_S, "the door starts"
            )
            assert process.poll() is None, "the door has ended while it was starting"
            yield url, process
        finally:
            process.terminate()
            try:
                process.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # its loop stands still
                process.kill()
                process.wait()
                raise


def memory_mib(pid: int, line: str = "VmRSS") -> float:
    """The memory that a process has; ``VmHWM`` is the most that it has had."""
    (found,) = (
        one
        for one in Path(f"/proc/{pid}/status").read_text().splitlines()
        if one.startswith(f"{line}:")
    )
    return int(found.split()[1]) / 1024


def lives(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/livez"):
            return True
    except urllib.error.URLError:
        return False


@dataclass
class Answer:
    """What came back; ``content`` is its JSON."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


def asked(
    url: str, body: bytes | None = None, /, *, method: str | None = None, **headers: str
) -> Answer:
    """One request, whatever comes back; ``content_type`` among headers is written with a dash."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as answer:
            return Answer(answer.status, _lower(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, _lower(error.headers), error.read())


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def sent(url: str, *pieces: bytes, pause_s: float = 0.0) -> bytes:
    """Bytes on a connection of their own, piece by piece; what comes back until the door ends it,
    or answers whole."""
    with connected(url) as connection:
        for piece in pieces:
            with contextlib.suppress(ConnectionError):
                connection.sendall(piece)
            time.sleep(pause_s)
        return received(connection)


def connected(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=START_TIMEOUT_S)


def received(connection: socket.socket) -> bytes:
    """All until the other end closes; nothing where it resets."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            found += piece
    return bytes(found)


def new_key(settings: GatewaySettings, tenant: str | None, *scopes: str, **limits: Any) -> str:
    """A key in the database of these settings; returns its secret."""
    database = open_database(settings.database_url)
    database.migrate()
    of_key = KeyLimits(**limits)
    _, secret = ApiKeyStore(database).create(
        NewApiKey("test", tenant, frozenset(scopes), limits=of_key)
    )
    database.close()
    return secret
