"""From what a request brings to its caller. Keys are remembered for two seconds, so revoking one takes that long at most."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Final, NamedTuple

from starlette.requests import HTTPConnection

from penstock_gateway.backend import Backend
from penstock_gateway.callers.addresses import Proxies
from penstock_gateway.callers.caller import OPERATOR, Caller
from penstock_gateway.callers.failed_tries import FailedTries
from penstock_gateway.callers.secret_keys import secret_in
from penstock_gateway.callers.sessions import COOKIE, SESSION_S, read_session, sign_session
from penstock_gateway.refused import Refused
from penstock_gateway.settings import is_loopback
from penstock_ledger import ApiKey, ApiKeyStore, KeyLimits, Meta, PenstockError, looks_like_key

__all__ = ["Found", "KnownKeys", "keys_of"]

log = logging.getLogger("penstock.gateway")

REMEMBERED_S: Final = 2.0
REMEMBERED_MAX: Final = 4_096  # keys; then all are read again
NOTED_EVERY_S: Final = 60.0  # the last use of a key, by this process


class Found(NamedTuple):
    caller: Caller
    limits: KeyLimits


class KnownKeys:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = ApiKeyStore(backend.database)
        self._remembered: dict[str, tuple[float, ApiKey]] = {}  # a secret's or a key's id -> until when, the key
        self._noted: dict[str, float] = {}
        self._notes: set[asyncio.Task[None]] = set()
        self._any_made = False
        self._none_until = 0.0
        self._failed = FailedTries()
        self._proxies = Proxies(backend.settings.gateway.trusted_proxies)
        self._session_secret: str | None = None

    async def found(self, connection: HTTPConnection, *, by_session: bool = False) -> Found:
        """Raises Refused (401, 403, 429), and DatabaseUnavailable."""
        if not await self.any_made():
            if not self._backend.settings.only_this_machine:
                raise _no_key()
            self._check_host(connection)
            return Found(OPERATOR, KeyLimits())
        secret = secret_in(connection)
        if secret:
            key = await self._of_secret(secret, connection)
        else:
            of_session = await self.of_session(connection) if by_session else None
            if of_session is None:
                raise _no_key()
            key = of_session
        self._note_used(key.key_id)
        return Found(Caller(key.tenant, key.key_id, key.scopes, key.counted_as), key.limits)

    async def any_made(self) -> bool:
        """Whether keys are asked for. Once that is so it stays so: revoked keys are kept."""
        if not self._any_made and time.monotonic() >= self._none_until:
            self._any_made = await self._backend.run(self._store.any_made)
            self._none_until = time.monotonic() + REMEMBERED_S / 2
        return self._any_made

    async def _of_secret(self, secret: str, connection: HTTPConnection) -> ApiKey:
        key = self._recalled(secret)
        if key is None:
            address, now = self._proxies.caller_of(connection), time.monotonic()
            was_right = secret in self._remembered  # others behind the same proxy must not keep its owner waiting
            wait_s = 0.0 if was_right else self._failed.wait_s(address, now)
            if wait_s > 0:
                headers = {"retry-after": str(math.ceil(wait_s))}
                raise Refused(
                    429, "Too many wrong API keys from this address.", code="too_many_wrong_keys", headers=headers
                )
            key = await self._backend.run(self._store.of_secret, secret) if looks_like_key(secret) else None
            if key is None or not key.valid(time.time()):
                self._failed.note(address, now)
                self._remembered.pop(secret, None)
                raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")
            self._remember(secret, key)
        return key

    # -- sessions of the dashboard --------------------------------------------------------------------------------------

    async def session_for(self, secret: str, connection: HTTPConnection) -> str:
        """The value of a cookie for who has typed this key. Raises Refused."""
        key = await self._of_secret(secret, connection)
        return sign_session(await self._signing_secret(), key.key_id, time.time() + SESSION_S)

    async def of_session(self, connection: HTTPConnection) -> ApiKey | None:
        """The key of the request's cookie."""
        cookie = connection.cookies.get(COOKIE, "")
        key_id = read_session(await self._signing_secret(), cookie, time.time()) if cookie else None
        if key_id is None:
            return None
        key = self._recalled(key_id)
        if key is None:
            key = await self._backend.run(self._store.get, key_id)
            if key is None or not key.valid(time.time()):
                return None
            self._remember(key_id, key)
        return key

    async def _signing_secret(self) -> str:
        if self._session_secret is None:
            self._session_secret = await self._backend.run(Meta(self._backend.database).session_secret)
        return self._session_secret

    # -- what is remembered ---------------------------------------------------------------------------------------------

    def _recalled(self, name: str) -> ApiKey | None:
        until, key = self._remembered.get(name, (0.0, None))
        return key if key is not None and time.monotonic() < until and key.valid(time.time()) else None

    def _remember(self, name: str, key: ApiKey) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[name] = (time.monotonic() + REMEMBERED_S, key)

    def _note_used(self, key_id: str) -> None:
        now = time.monotonic()
        if now - self._noted.get(key_id, -math.inf) < NOTED_EVERY_S:
            return
        if len(self._noted) >= REMEMBERED_MAX:
            self._noted.clear()
        self._noted[key_id] = now
        note = asyncio.create_task(self._note(key_id))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _note(self, key_id: str) -> None:
        try:
            await self._backend.run(self._store.note_used, key_id)
        except (PenstockError, Refused) as error:  # the request itself says what is away
            log.info("the last use of key %s was not noted: %s", key_id, error)

    # -- without keys ---------------------------------------------------------------------------------------------------

    def _check_host(self, connection: HTTPConnection) -> None:
        """A page of another site must not reach the doors through a browser of this machine: neither by a name of its own that
        leads here, nor by a form that it sends."""
        host = connection.headers.get("host", "")
        name = _without_port(host)
        if not is_loopback(name) and name not in self._backend.settings.gateway.hosts:
            raise Refused(
                403, f"This door has no API keys, so it answers requests to this machine only, not to {name[:80]!r}: make a "
                "key (penstock keys create), or name the host in gateway.hosts.", code="host_not_allowed",
            )  # fmt: skip
        origin = connection.headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            raise Refused(403, f"Pages of {origin[:80]!r} may not use this door.", code="origin_not_allowed")


def keys_of(connection: HTTPConnection) -> KnownKeys:
    known: KnownKeys = connection.app.state.keys
    return known


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _no_key() -> Refused:
    message = "You didn't provide an API key: send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`."
    return Refused(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
