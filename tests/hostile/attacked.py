"""A door under attack: its process, what it costs, bytes that no HTTP client sends, and whether
others are still answered."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from doors import Answer, asked, door_process, door_settings, memory_mib, new_key
from hostile.door_program import PATH

from penstock_gateway.settings import GatewaySettings

PROGRAM: Final = Path(__file__).with_name("door_program.py")
DEADLINE_S: Final = 30.0  # for one exchange: a door that takes longer does not answer
LOOK_S: Final = 0.05  # between two looks at /health


@dataclass
class Attacked:
    """A door in a process of its own.

    ``secret`` is an operator's key; None where the door has no keys."""

    url: str
    process: subprocess.Popen[bytes]
    settings: GatewaySettings
    log: Path
    secret: str | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.secret is None else {"authorization": f"Bearer {self.secret}"}

    @property
    def memory_mib(self) -> float:
        return memory_mib(self.pid)

    @property
    def peak_mib(self) -> float:
        """The most memory that it has had."""
        return memory_mib(self.pid, "VmHWM")

    def stood_still_s(self) -> float:
        """CPU time for which its loop answered no request at the most, since this was asked
        before."""
        found: float = self.ask("GET", PATH).content["longest_s"]
        return found

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request with the key, whatever comes back."""
        return asked(f"{self.url}{path}", body, method=method, **self.headers, **headers)

    def connect(self, deadline_s: float = DEADLINE_S, *, source: str = "") -> Raw:
        """``source`` is the address of loopback that it comes from, as 127.0.0.2."""
        return Raw(self.url, deadline_s, source=source)

    def faults(self) -> list[str]:
        """Lines of its log that tell of a request whose error was not caught."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [
            line for line in lines if " has failed (req_" in line or "Exception in ASGI" in line
        ]


class Raw:
    """One connection, for bytes of any kind. All that is done on it ends by its deadline."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S, *, source: str = "") -> None:
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname is not None
        self._ends = time.monotonic() + deadline_s
        place = (parts.hostname, parts.port or 80)
        self.socket = socket.create_connection(
            place, timeout=deadline_s, source_address=(source, 0) if source else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether all of it could be sent: not where the door has closed the connection, or takes
        no more."""
        try:
            self._in_time()
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """The head of a request; ``host`` is there unless ``headers`` has one."""
        told = {"host": "127.0.0.1", **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
        return self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def answer(self) -> Answer | None:
        """One whole answer; None where the connection ends before, or the deadline does."""
        found = http.client.HTTPResponse(self.socket)
        try:
            self._in_time()
            found.begin()
            self._in_time()
            return Answer(
                found.status,
                {name.lower(): value for name, value in found.getheaders()},
                found.read(),
            )
        except (OSError, http.client.HTTPException):
            return None
        finally:
            found.close()

    def status(self) -> int | None:
        """The status of an answer whose body may have no end, as that of events; None as for
        ``answer``."""
        found = bytearray()
        with contextlib.suppress(OSError):
            while (
                len(found) < len(b"HTTP/1.1 200")
                and self._in_time()
                and (piece := self.socket.recv(12))
            ):
                found += piece
        return int(found[9:12]) if found.startswith(b"HTTP/1.1 ") and len(found) >= 12 else None

    def rest(self) -> bytes:
        """All until the door closes the connection, or the deadline."""
        found = bytearray()
        with contextlib.suppress(OSError):
            while self._in_time() and (piece := self.socket.recv(65_536)):
                found += piece
        return bytes(found)

    def _in_time(self) -> bool:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline of this connection is over")
        self.socket.settimeout(left)
        return True


@dataclass
class HealthWatch:
    """Asks /health again and again, on a new connection each time, while the block runs."""

    url: str
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)  # requests that got no answer
    _ends: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def only_ok(self) -> bool:
        """Whether there were looks, and each was answered 200."""
        return bool(self.statuses) and not self.failures and set(self.statuses) == {200}

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, name="health watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join(2 * DEADLINE_S)

    def _look(self) -> None:
        while True:  # once at least, however short the block is
            try:
                with Raw(self.url) as connection:
                    connection.head("GET", "/health", {"connection": "close"})
                    answer = connection.answer()
            except OSError as error:
                self.failures.append(f"connect: {error}")
            else:
                if answer is None:
                    self.failures.append("no answer")
                else:
                    self.statuses[answer.status] += 1
            if self._ends.wait(LOOK_S):
                return


@contextlib.contextmanager
def attacked_door(
    folder: Path,
    redis_url: str,
    *,
    with_keys: bool,
    more: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Iterator[Attacked]:
    """`penstock gateway` in ``folder``; ``fields`` are those of `gateway.*`, ``more`` other
    settings."""
    settings = door_settings(folder, redis_url, **fields).model_copy(update=dict(more or {}))
    secret = new_key(settings, None, "admin") if with_keys else None
    log = folder / "door.log"
    with door_process(settings, program=PROGRAM, log=log) as (url, process):
        found = Attacked(url, process, settings, log, secret)
        found.stood_still_s()  # its clock begins
        yield found
