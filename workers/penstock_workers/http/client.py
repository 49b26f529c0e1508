"""What every HTTP client of a worker can do, and what it is limited to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from penstock_workers.http.target import Target

Reserve = Callable[[int], Awaitable[object]]
"""Waits until so many bytes may be held. Called once at most, for all that a body may become."""


class Limits(NamedTuple):
    """What a client holds and waits for. The defaults suit calls to a model."""

    max_body_bytes: int = 32 * 1024 * 1024  # of one answer, unpacked: what is larger is refused
    free_body_bytes: int = (
        64 * 1024
    )  # up to here a body is read without asking `reserve`: nearly every answer
    connect_timeout_s: float = (
        10.0  # a server that does not accept in this time is down, whatever the request's own limit
    )
    # an idle connection is closed after this, or sooner where the server's Keep-Alive says so
    keepalive_s: float = 30.0
    idle_per_server: int = (
        1024  # idle connections kept to one server; more are closed as they become idle
    )


class HttpAnswer(NamedTuple):
    """A whole answer.

    Names of headers are looked up in lower case; of a repeated one the first value counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient(Protocol):
    """Makes requests as they are given: each is sent once at most, redirects are answers, and there
    are no cookies.

    Belongs to one event loop. Certificates are verified against the system's authorities, or those
    of SSL_CERT_FILE and SSL_CERT_DIR. Variables such as HTTPS_PROXY do not count. A request that is
    cancelled takes its connection with it.
    """

    async def post(
        self,
        target: Target,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        reserve: Reserve | None = None,
    ) -> HttpAnswer:
        """Send ``body`` and return the whole answer. Raises HttpError.

        ``timeout_s`` holds from the call to the last byte; the time that ``reserve`` takes is not
        counted.
        """
        ...

    async def get(self, target: Target, *, timeout_s: float) -> HttpAnswer:
        """Raises HttpError."""
        ...

    async def close(self) -> None:
        """Close every connection; requests that are under way end with ConnectionLost."""
        ...
