"""The interface of an HTTP client, its errors, and where a request goes."""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit


class HttpError(Exception):
    """The request has no whole answer."""


class UnusableRequest(HttpError):
    """Its URL or a header cannot be sent as given. Nothing was sent."""


class NotConnected(HttpError):
    """No connection to the server could be made. Nothing was sent."""


class CertificateRefused(NotConnected):
    """The server's certificate is not trusted, or is another host's. Nothing was sent."""


class ConnectionLost(HttpError):
    """The connection ended, or what came was no HTTP, before the answer was whole.

    The server may have seen the request."""


class TimedOut(HttpError):
    """The answer was not whole in time. The server may have seen the request."""


class AnswerTooLarge(HttpError):
    """The body has more bytes than the client's limits allow. The rest of it was not read."""


Reserve = Callable[[int], Awaitable[object]]
"""Waits until so many bytes may be held. Called once at most, for all that a body may become."""


class PartReader(Protocol):
    """Takes the body of an event stream as it comes, in the place of the client that keeps it."""

    @property
    def first_s(self) -> float:
        """The longest time until the first byte of the stream."""
        ...

    @property
    def next_s(self) -> float:
        """The longest time from any of its bytes to the next."""
        ...

    def feed(self, part: bytes) -> int:
        """Take a part, unpacked; return how many bytes the reader holds now. Raises HttpError."""
        ...


def is_event_stream(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether an answer is read as it comes, where it was asked for so.

    Refusals, and answers of servers that do not stream, are read whole."""
    return status == 200 and headers.get("content-type", "").startswith("text/event-stream")


class Limits(NamedTuple):
    """The bounds and times of a client. The defaults suit calls to a model."""

    max_body_bytes: int = 32 * 1024 * 1024  # of one answer, unpacked: what is larger is refused
    # up to here a body is read without asking `reserve`: nearly every answer
    free_body_bytes: int = 64 * 1024
    # a server that does not accept in this time is down, whatever the request's own limit
    connect_timeout_s: float = 10.0
    # an idle connection is closed after this, or sooner where the server's Keep-Alive says so
    keepalive_s: float = 30.0
    # idle connections kept to one server; more are closed as they become idle
    idle_per_server: int = 1024


class HttpAnswer(NamedTuple):
    """A whole answer.

    Names of headers are looked up in lower case; of a repeated one the first value counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient(Protocol):
    """Makes requests as they are given: sent once at most, with redirects as answers.

    There are no cookies.

    Belongs to one event loop. Certificates are verified against the system's authorities, or those
    of SSL_CERT_FILE and SSL_CERT_DIR. Variables such as HTTPS_PROXY do not count. A request that is
    cancelled takes its connection with it."""

    async def post(
        self,
        target: Target,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        reserve: Reserve | None = None,
        stream: PartReader | None = None,
    ) -> HttpAnswer:
        """Send ``body`` and return the whole answer. Raises HttpError.

        ``timeout_s`` holds from the call to the last byte; the time that ``reserve`` takes is not
        counted. The body of an event stream goes to ``stream``, and is empty in what is returned.
        """
        ...

    async def get(self, target: Target, *, timeout_s: float) -> HttpAnswer:
        """Return the answer of a GET; raise HttpError."""
        ...

    async def close(self) -> None:
        """Close every connection; requests that are under way end with ConnectionLost."""
        ...


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110
_UNSAFE_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what could end a header and begin another
_KEPT_IN_PATHS = "/%:@!$&'()*+,;=~-._"
_OWN = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "accept-encoding",
        "expect",
        "upgrade",
    }
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Server(NamedTuple):
    """The server that a connection belongs to."""

    secure: bool
    host: str  # a name in ASCII, or an address without brackets
    port: int


@dataclass(frozen=True)
class Target:
    """One URL, and the headers that each request to it carries. Make one with ``of``."""

    url: str  # without user, password and fragment, and with every odd character encoded
    server: Server
    headers: Mapping[str, str]
    proxy: str | None = None

    @classmethod
    def of(
        cls, url: str, headers: Mapping[str, str] | None = None, *, proxy: str | None = None
    ) -> Target:
        """Read a URL; raise UnusableRequest."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UnusableRequest(f"not a usable URL: {error}") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
            raise UnusableRequest(
                "not a usable URL: it needs http:// or https://, a host, and a port from 1 to "
                "65535 or none"
            )
        server = Server(
            parts.scheme == "https",
            _ascii_host(parts.hostname),
            port or _DEFAULT_PORTS[parts.scheme],
        )
        sent = dict(headers or {})
        if parts.username is not None:
            if any(name.lower() == "authorization" for name in sent):
                raise UnusableRequest(
                    "not a usable URL: it carries a user beside a key for the same server; leave "
                    "one out"
                )
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            sent["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        check_headers(sent.items())
        query = "?" + quote(parts.query, safe=_KEPT_IN_PATHS + "?") if parts.query else ""
        path = quote(parts.path, safe=_KEPT_IN_PATHS) or "/"
        return cls(f"{parts.scheme}://{_authority(server)}{path}{query}", server, sent, proxy)

    @cached_property
    def resource(self) -> str:
        """The part of the URL that stands in the first line of a request."""
        return self.url.split("/", 3)[3].join(("/", ""))

    @cached_property
    def head(self) -> str:
        """The header lines that never change, the last one's end included."""
        lines = [
            ("Host", _authority(self.server)),
            ("Accept", "*/*"),
            ("Accept-Encoding", "gzip, deflate"),
        ]
        return "".join(f"{name}: {value}\r\n" for name, value in (*lines, *self.headers.items()))


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Raise UnusableRequest for headers that would break a request or are the client's own."""
    for name, value in headers:
        _check_name(name)
        if not (value.isascii() and value.isprintable()) and not _is_safe(value):
            raise UnusableRequest(
                f"the value of the header {name} has control characters; leave them out"
            )


@lru_cache(maxsize=256)
def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UnusableRequest(f"not a usable header name: {name!r}")
    if name.lower() in _OWN:
        raise UnusableRequest(f"the header {name} is set by the client; leave it out")


def _is_safe(value: str) -> bool:
    """Return whether a value can be a header.

    Other than ASCII is sent as UTF-8, which half a surrogate pair has no form in."""
    return not _UNSAFE_VALUE.search(value) and not re.search("[\ud800-\udfff]", value)


def _ascii_host(host: str) -> str:
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise UnusableRequest(
            f"not a usable URL: its host has no form in ASCII ({error})"
        ) from None
    if re.search(r"[\x00-\x20\x7f/?#@\\]", name):
        raise UnusableRequest("not a usable URL: its host has characters that no host has")
    return name


def _authority(server: Server) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return (
        host
        if server.port == _DEFAULT_PORTS["https" if server.secure else "http"]
        else f"{host}:{server.port}"
    )
