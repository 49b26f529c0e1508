"""From what a request brings to its caller.

Keys are remembered for two seconds, so revoking one takes that long at most.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import math
import secrets
import time
from typing import Final, Generic, NamedTuple, TypeVar

from sqlalchemy.exc import DBAPIError
from starlette.requests import HTTPConnection

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import OPERATOR, Caller, Proxies
from penstock_gateway.refused import Refused
from penstock_gateway.settings import is_loopback
from penstock_ledger import (
    ApiKey,
    ApiKeyStore,
    EndedSessions,
    KeyLimits,
    Meta,
    PenstockError,
    digest_of_key,
    in_words,
    looks_like_key,
)

__all__ = [
    "COOKIE",
    "SESSION_S",
    "Found",
    "KnownKeys",
    "Session",
    "keys_of",
    "read_session",
    "signed_session",
]

TRIES_MAX: Final = 30  # of one address within the span
SPAN_S: Final = 60.0
# that are remembered; then the one that began longest ago is forgotten
ADDRESSES_MAX: Final = 10_000


class FailedTries:
    def __init__(self) -> None:
        # address -> when its span began, tries since then
        self._seen: dict[str, tuple[float, int]] = {}

    def wait_s(self, address: str, now: float) -> float:
        """Return how long it has to wait; 0 for not at all."""
        began, tries = self._seen.get(address, (now, 0))
        left_s = began + SPAN_S - now
        return left_s if tries >= TRIES_MAX and left_s > 0 else 0.0

    def note(self, address: str, now: float) -> None:
        began, tries = self._seen.pop(address, (now, 0))
        if now - began >= SPAN_S:
            began, tries = now, 0
        if len(self._seen) >= ADDRESSES_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[address] = (began, tries + 1)


_BEARER: Final = "bearer "


def secret_in(connection: HTTPConnection) -> str | None:
    """Return the API key of a request, as OpenAI's clients send it, or as Anthropic's do."""
    bearer = connection.headers.get("authorization", "")
    if bearer[: len(_BEARER)].lower() == _BEARER:
        return bearer[len(_BEARER) :].strip()
    return connection.headers.get("x-api-key")


COOKIE: Final = "penstock_session"
SESSION_S: Final = 12 * 3600.0  # a working day; then the key is asked for again
ID_BYTES: Final = 16
# signed with the rest: the same secret signs forms, and neither stands for the other
_PURPOSE: Final = "session"


class Session(NamedTuple):
    """The content of a session's cookie.

    Its id opens nothing, and neither does that of its key: the signature does."""

    key_id: str
    session_id: str
    ends_at: int


def new_session(key_id: str, now: float) -> Session:
    """Begin a session of who has typed this key."""
    return Session(key_id, secrets.token_hex(ID_BYTES), int(now + SESSION_S))


def signed_session(secret: str, session: Session) -> str:
    """Return the value of its cookie."""
    told = f"{session.key_id}.{session.session_id}.{session.ends_at}"
    return f"{told}.{_signature(secret, told)}"


def read_session(secret: str, cookie: str, now: float) -> Session | None:
    """Return the session of a cookie.

    It is None for one that has expired, that another has made, or that is of an older Penstock."""
    told, _, signature = cookie.rpartition(".")
    if not hmac.compare_digest(
        _signature(secret, told).encode(), signature.encode("utf-8", "replace")
    ):
        return None
    key_id, session_id, ends_at = told.split(".")
    session = Session(key_id, session_id, int(ends_at))
    return session if now < session.ends_at else None


def _signature(secret: str, told: str) -> str:
    digest = hmac.digest(
        secret.encode(), f"{_PURPOSE}:{told}".encode("utf-8", "replace"), hashlib.sha256
    )
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


log = logging.getLogger("penstock.gateway")

REMEMBERED_S: Final = 2.0
REMEMBERED_MAX: Final = 4_096  # keys; then all are read again
NOTED_EVERY_S: Final = 60.0  # the last use of a key, by this process


K = TypeVar("K", bytes, str)


class Found(NamedTuple):
    caller: Caller
    limits: KeyLimits


class Remembered(Generic[K]):
    """Keys that were read from SQL a moment ago, by what a request has to bring for them."""

    def __init__(self) -> None:
        self._keys: dict[K, tuple[float, ApiKey]] = {}  # until when (monotonic), the key

    def __contains__(self, name: K) -> bool:
        """Return whether it stood for a key when it was looked up last."""
        return name in self._keys

    def get(self, name: K) -> ApiKey | None:
        """Return the key, unless it has to be read again."""
        until, key = self._keys.get(name, (0.0, None))
        return (
            key if key is not None and time.monotonic() < until and key.valid(time.time()) else None
        )

    def put(self, name: K, key: ApiKey) -> None:
        if len(self._keys) >= REMEMBERED_MAX:
            self._keys.clear()
        self._keys[name] = (time.monotonic() + REMEMBERED_S, key)

    def forget(self, name: K) -> None:
        self._keys.pop(name, None)


class Sessions:
    """Sessions of the dashboard."""

    def __init__(self, backend: Backend, store: ApiKeyStore) -> None:
        self._backend = backend
        self._store = store
        self._ended = EndedSessions(backend.database)
        self._keys: Remembered[str] = Remembered()  # by the session's id
        self._secret: str | None = None

    async def begin(self, key: ApiKey) -> str:
        """Return the value of a cookie for the owner of this key."""
        return signed_session(await self._signing_secret(), new_session(key.key_id, time.time()))

    async def key_of(self, connection: HTTPConnection) -> ApiKey | None:
        """Return the key of the request's cookie; None where its session is over."""
        session = await self._session_of(connection)
        if session is None:
            return None
        key = self._keys.get(session.session_id)
        if key is None:
            key = await self._backend.run(self._read, session)
            if key is None or not key.valid(time.time()):
                return None
            self._keys.put(session.session_id, key)
        return key

    async def end(self, connection: HTTPConnection) -> None:
        """End the session of the request's cookie."""
        session = await self._session_of(connection)
        if session is not None:
            now = time.time()
            await self._backend.run(self._ended.end, *session, now=now, lasts_s=SESSION_S)
            self._keys.forget(session.session_id)

    async def _session_of(self, connection: HTTPConnection) -> Session | None:
        cookie = connection.cookies.get(COOKIE, "")
        return read_session(await self._signing_secret(), cookie, time.time()) if cookie else None

    def _read(self, session: Session) -> ApiKey | None:
        with self._backend.database.one_read():
            return None if self._ended.is_ended(*session) else self._store.get(session.key_id)

    async def _signing_secret(self) -> str:
        if self._secret is None:
            self._secret = await self._backend.run(Meta(self._backend.database).session_secret)
        return self._secret


class KeyUses:
    """Notes the last use of each key, now and then."""

    def __init__(self, backend: Backend, store: ApiKeyStore) -> None:
        self._backend = backend
        self._store = store
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()

    def note(self, key_id: str) -> None:
        now = time.monotonic()
        if now - self._noted.get(key_id, -math.inf) < NOTED_EVERY_S:
            return
        if len(self._noted) >= REMEMBERED_MAX:
            self._noted.clear()
        self._noted[key_id] = now
        note = asyncio.create_task(self._write(key_id))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _write(self, key_id: str) -> None:
        try:
            await self._backend.run(self._store.note_used, key_id)
        # the request itself says what is away
        except (PenstockError, Refused, DBAPIError) as error:
            log.info("the last use of key %s was not noted: %s", key_id, in_words(error))


class KnownKeys:
    """The keys of an app's callers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = ApiKeyStore(backend.database)
        # Two, and never one: what a caller may know of another's key (its id) is looked up among
        # sessions only, whose cookies are signed. Of a secret its digest is kept, and no map is
        # asked about a text that has not the shape of one.
        self._by_digest: Remembered[bytes] = Remembered()
        self._sessions = Sessions(backend, self._store)
        self._uses = KeyUses(backend, self._store)
        self._any_made = False
        self._none_until = 0.0
        self._failed = FailedTries()
        self._proxies = Proxies(backend.settings.gateway.trusted_proxies)

    async def found(self, connection: HTTPConnection, *, by_session: bool = False) -> Found:
        """Return who asks. Raises Refused (401, 403, 429), and DatabaseUnavailable."""
        if not await self.any_made():
            if not self._backend.settings.only_this_machine:
                raise _no_key()
            self._check_host(connection)
            return Found(OPERATOR, KeyLimits())
        secret = secret_in(connection)
        if secret:
            key = await self._of_secret(secret, connection)
        else:
            of_session = await self._sessions.key_of(connection) if by_session else None
            if of_session is None:
                raise _no_key()
            key = of_session
        self._uses.note(key.key_id)
        return Found(Caller(key.tenant, key.key_id, key.scopes, key.counted_as), key.limits)

    async def any_made(self) -> bool:
        """Return whether keys are asked for. Once that is so it stays so: revoked keys are kept."""
        if not self._any_made and time.monotonic() >= self._none_until:
            self._any_made = await self._backend.run(self._store.any_made)
            self._none_until = time.monotonic() + REMEMBERED_S / 2
        return self._any_made

    async def _of_secret(self, secret: str, connection: HTTPConnection) -> ApiKey:
        digest = digest_of_key(secret) if looks_like_key(secret) else None
        key = None if digest is None else self._by_digest.get(digest)
        if key is not None:
            return key
        address, now = self._proxies.caller_of(connection), time.monotonic()
        # Others behind the same proxy must not keep the owner of a key waiting that was right here
        # before.
        was_right = digest is not None and digest in self._by_digest
        wait_s = 0.0 if was_right else self._failed.wait_s(address, now)
        if wait_s > 0:
            headers = {"retry-after": str(math.ceil(wait_s))}
            told = "Too many wrong API keys from this address."
            raise Refused(429, told, code="too_many_wrong_keys", headers=headers)
        key = None if digest is None else await self._backend.run(self._store.of_digest, digest)
        if digest is None or key is None or not key.valid(time.time()):
            self._failed.note(address, now)
            if digest is not None:
                self._by_digest.forget(digest)
            raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")
        self._by_digest.put(digest, key)
        return key

    async def session_for(self, secret: str, connection: HTTPConnection) -> str:
        """Return the value of a cookie for who has typed this key. Raises Refused."""
        return await self._sessions.begin(await self._of_secret(secret, connection))

    async def end_session(self, connection: HTTPConnection) -> None:
        """End the session of the request's cookie.

        It ends here at once, at other doors within REMEMBERED_S."""
        await self._sessions.end(connection)

    # -- without keys ------------------------------------------------------------------------------

    def _check_host(self, connection: HTTPConnection) -> None:
        """Refuse pages of other sites, which a browser of this machine might show.

        They come by a name of their own that leads here, or by a form that they send."""
        host = connection.headers.get("host", "")
        name = _without_port(host)
        if not is_loopback(name) and name not in self._backend.settings.gateway.hosts:
            raise Refused(
                403,
                "This server has no API keys, so it answers requests to this machine only, not to "
                f"{name[:80]!r}: make a key here, or name the host in "
                "gateway.hosts.",
                code="host_not_allowed",
            )
        origin = connection.headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refused(
                403, f"Pages of {origin[:80]!r} may not use this API.", code="origin_not_allowed"
            )


def keys_of(connection: HTTPConnection) -> KnownKeys:
    known: KnownKeys = connection.app.state.keys
    return known


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _no_key() -> Refused:
    message = (
        "You didn't provide an API key: send it as `Authorization: Bearer KEY`, or as `x-api-key: "
        "KEY`."
    )
    return Refused(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
