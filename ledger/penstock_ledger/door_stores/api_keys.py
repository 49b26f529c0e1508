"""Keys of the HTTP doors.

A secret is shown once, when its key is made; what is kept is its SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from penstock_ledger.door_stores.whose import Whose
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import api_keys, meta
from penstock_ledger.stored_values import json_text

__all__ = [
    "DEFAULT_SCOPES",
    "KEYS_MAX",
    "KEY_NAME_CHARS",
    "SCOPES",
    "ApiKey",
    "ApiKeyStore",
    "EndedSessions",
    "KeyLimits",
    "LockedKeys",
    "NewApiKey",
    "digest_of_key",
    "is_tenant_of_key",
    "looks_like_key",
]

ENDED_MAX: Final = 100
"""Ended sessions of one key that are listed one by one, until their time is over anyhow. With one
more all sessions end that the key has: who signs in and out in a loop must not fill the table."""


class EndedSessions:
    """Sessions of the dashboard that were ended before their time, as all doors see them.

    Each row holds ``ended`` (session to when its cookie ends) and ``until``: every session is over
    that ends until then."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def end(
        self, key_id: str, session_id: str, ends_at: int, *, now: float, lasts_s: float
    ) -> None:
        """End a session, whose cookie would have ended at ``ends_at``.

        A session lasts ``lasts_s`` from its beginning."""

        def note(connection: Connection) -> None:
            self._db.lock(connection, _row_of(key_id))
            row = self._read(connection, key_id)
            ended = {name: ends for name, ends in row["ended"].items() if ends > now} | {
                session_id: ends_at
            }
            if len(ended) > ENDED_MAX:
                row["until"], ended = int(now + lasts_s), {}
            value = json_text({"until": row["until"], "ended": ended})
            new = self._db.insert(meta).values(name=_row_of(key_id), value=value)
            connection.execute(
                new.on_conflict_do_update(index_elements=["name"], set_={"value": value})
            )

        self._db.write(note)

    def is_ended(self, key_id: str, session_id: str, ends_at: int) -> bool:
        """Return whether this session was ended before its time."""
        row = self._db.read(lambda connection: self._read(connection, key_id))
        return session_id in row["ended"] or ends_at <= row["until"]

    def _read(self, connection: Connection, key_id: str) -> dict[str, Any]:
        found = connection.execute(
            select(meta.c.value).where(meta.c.name == _row_of(key_id))
        ).scalar_one_or_none()
        return {"until": 0, "ended": {}} if found is None else orjson.loads(found)


def forget_sessions_of(connection: Connection, key_id: str) -> None:
    """Forget the ended sessions of a deleted key: no cookie counts that names it."""
    connection.execute(delete(meta).where(meta.c.name == _row_of(key_id)))


def _row_of(key_id: str) -> str:
    return f"ended_sessions:{key_id}"


T = TypeVar("T")

SCOPES: Final = ("read", "write", "infer", "keys", "admin")
# Of a key that is made without naming any.
DEFAULT_SCOPES: Final[tuple[Literal["read", "write", "infer"], ...]] = ("read", "write", "infer")
KEY_NAME_CHARS: Final = 100
# As the option `tenant` of a job, without "/": it ends the name.
_TENANT: Final = re.compile(r"(?!job_)[A-Za-z0-9_.:@-]{1,64}")
SECRET_PREFIX: Final = "sk-penstock-"  # noqa: S105  # as other keys of the field begin, so that scanners and our redaction know one
SECRET_BYTES: Final = 32
_SECRET_SHAPE: Final = re.compile(re.escape(SECRET_PREFIX) + r"[A-Za-z0-9_-]{43}")

KEYS_MAX: Final = 10_000
"""That are shown at once, and that one tenant may have over HTTP; more than any hands out. Of those
that have ended the oldest makes room for a new one: who changes its keys each hour would have none
left after a year."""
# how often the last use of a key is written: a write per request would cost more than the request
USED_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key's tenant; None = no limit of its own."""

    requests_per_minute: int | None = None
    concurrency: int | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class NewApiKey:
    name: str
    tenant: str | None
    scopes: frozenset[str]
    expires_at: float | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)
    made_by: str | None = None  # the id of the key that makes it; None: the command line does
    # the id of the key whose requests count with its own, where it has no tenant
    counted_as: str | None = None


@dataclass(frozen=True, slots=True)
class ApiKey:
    key_id: str
    tenant: str | None
    name: str
    scopes: frozenset[str]
    limits: KeyLimits
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None
    made_by: str | None = None
    counted_as: str | None = None

    def valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class ApiKeyStore:
    def __init__(self, db: Database) -> None:
        self._db = db

    def create(self, key: NewApiKey) -> tuple[str, str]:
        """Create a key and return its id and its secret, which is nowhere kept."""
        return self._db.write(lambda connection: _create(connection, key))

    def under_lock(self, work: Callable[[LockedKeys], T], tenant: str | None) -> T:
        """Look at keys and change them in one transaction, while no other does for this tenant.

        ``work`` may run again, and uses what it is given only."""

        def locked(connection: Connection) -> T:
            self._db.lock(connection, f"api_keys:{tenant or ''}")
            return work(LockedKeys(connection, tenant))

        return self._db.write(locked)

    def of_digest(self, digest: bytes) -> ApiKey | None:
        """Return the key whose secret has this digest, expired and revoked ones too."""
        query = select(api_keys).where(api_keys.c.digest == digest)
        row = self._db.read(lambda connection: connection.execute(query).one_or_none())
        return _key_of(row) if row is not None and hmac.compare_digest(row.digest, digest) else None

    def get(self, key_id: str) -> ApiKey | None:
        query = select(api_keys).where(api_keys.c.key_id == key_id)
        row = self._db.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _key_of(row)

    def tenants_of(self, key_ids: Collection[str]) -> dict[str, str | None]:
        """Return whose keys these are, those that still exist; None for the operator's."""
        query = select(api_keys.c.key_id, api_keys.c.tenant).where(api_keys.c.key_id.in_(key_ids))
        rows = self._db.rows(query)
        return {row.key_id: row.tenant for row in rows}

    def list(self, tenants: Collection[str] | None = None) -> list[ApiKey]:
        """Return keys of these tenants or of all, newest first."""
        query = (
            select(api_keys)
            .order_by(api_keys.c.created_at.desc(), api_keys.c.key_id)
            .limit(KEYS_MAX)
        )
        if tenants is not None:
            query = query.where(api_keys.c.tenant.in_(tenants))
        return [_key_of(row) for row in self._db.rows(query)]

    def page(
        self, whose: Whose, *, limit: int, after: tuple[float, str] | None = None
    ) -> Sequence[ApiKey]:
        """Return keys, newest first.

        They come behind the one that was made at ``after[0]`` with the id ``after[1]``."""
        made, name = api_keys.c.created_at, api_keys.c.key_id
        query = (
            select(api_keys)
            .where(whose.holds(api_keys.c.tenant))
            .order_by(made.desc(), name)
            .limit(limit)
        )
        if after is not None:
            query = query.where(or_(made < after[0], and_(made == after[0], name > after[1])))
        return [_key_of(row) for row in self._db.rows(query)]

    def any_made(self) -> bool:
        """Return whether there ever was a key.

        Revoking the last one closes the doors, and does not open them."""
        query = select(func.count()).select_from(select(api_keys.c.key_id).limit(1).subquery())
        return self._db.read(lambda connection: connection.execute(query).scalar_one()) > 0

    def revoke(self, key_id: str) -> bool:
        """Revoke a key from now on; False when it was already, or never was there."""
        return self._db.write(lambda connection: _revoke(connection, key_id))

    def note_used(self, key_id: str) -> None:
        """Note that a key was used, where the last note is older than a minute."""

        def note(connection: Connection) -> None:
            now = self._db.now(connection)
            stale = or_(
                api_keys.c.last_used_at.is_(None), api_keys.c.last_used_at < now - USED_EVERY_S
            )
            connection.execute(
                update(api_keys).where(api_keys.c.key_id == key_id, stale).values(last_used_at=now)
            )

        self._db.write(note)


class LockedKeys:
    """The keys of one tenant (None: those without one) within a transaction."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        self._connection = connection
        self._its = Whose(tenant).holds(api_keys.c.tenant)

    def get(self, key_id: str) -> ApiKey | None:
        """Return any key as it is now: no one revokes it until the transaction ends."""
        query = select(api_keys).where(api_keys.c.key_id == key_id).with_for_update()
        row = self._connection.execute(query).one_or_none()
        return None if row is None else _key_of(row)

    def any_made(self) -> bool:
        return self._connection.execute(select(api_keys.c.key_id).limit(1)).first() is not None

    def budget_usd(self, *, without: str | None = None) -> float | None:
        """Return what the keys say that the tenant may spend in a month.

        ``without``: as if this one were revoked."""
        return next(
            iter(budget_of_keys(self._connection, self._its, without=without).values()), None
        )

    def create(self, key: NewApiKey) -> tuple[str, str] | None:
        """Create a key; return its id and its secret.

        None where the tenant has KEYS_MAX keys, and all of them are valid.
        """
        return _create(self._connection, key) if self._make_room() else None

    def revoke(self, key_id: str) -> bool:
        return _revoke(self._connection, key_id)

    def _make_room(self) -> bool:
        number = select(func.count()).select_from(api_keys).where(self._its)
        if int(self._connection.execute(number).scalar_one()) < KEYS_MAX:
            return True
        columns = api_keys.c
        ended = self._its, or_(columns.revoked_at.is_not(None), columns.expires_at <= time.time())
        newest_first = columns.created_at.desc(), columns.key_id.desc()
        with_budget = (
            select(columns.key_id).where(*ended, names_budget()).order_by(*newest_first).limit(1)
        )
        # it may say what the tenant may spend
        says_budget = self._connection.execute(with_budget).scalar()
        oldest = select(columns.key_id).where(*ended, columns.key_id != (says_budget or ""))
        found = self._connection.execute(
            oldest.order_by(columns.created_at, columns.key_id).limit(1)
        ).scalar()
        if found is None:
            return False
        self._connection.execute(delete(api_keys).where(columns.key_id == found))
        forget_sessions_of(self._connection, found)
        return True


def names_budget() -> ColumnElement[bool]:
    return api_keys.c.limits.not_like('%"budget_usd":null%')


def budget_of_keys(
    connection: Connection, which: ColumnElement[bool], *, without: str | None = None
) -> dict[str, float]:
    """Return US dollars a month, by tenant: those of its newest valid key that names a budget.

    Where none is valid any more, of the last one that was made. ``without``: as if this key were
    revoked."""
    columns = api_keys.c
    query = (
        select(
            columns.tenant, columns.key_id, columns.limits, columns.expires_at, columns.revoked_at
        )
        .where(which, columns.tenant.is_not(None), names_budget())
        .order_by(columns.created_at, columns.key_id)
    )
    found: dict[bool, dict[str, float]] = {False: {}, True: {}}  # by whether the key is valid
    for row in connection.execute(query):
        is_valid = row.revoked_at is None and (
            row.expires_at is None or time.time() < row.expires_at
        )
        found[is_valid and row.key_id != without][row.tenant] = float(
            orjson.loads(row.limits)["budget_usd"]
        )
    return {**found[False], **found[True]}


def is_tenant_of_key(text: str) -> bool:
    """Return whether a key may have this tenant.

    It is 1 to 64 letters, digits and . : @ _ -, not beginning with job_."""
    return _TENANT.fullmatch(text) is not None


def looks_like_key(text: str) -> bool:
    """Return whether it has the shape of a secret at all: nothing else is looked up."""
    return _SECRET_SHAPE.fullmatch(text) is not None


def digest_of_key(secret: str) -> bytes:
    """Return what is kept of a secret.

    Those have 32 random bytes, so that a plain hash of one cannot be searched for."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _create(connection: Connection, key: NewApiKey) -> tuple[str, str]:
    key_id, secret = (
        f"key_{secrets.token_hex(12)}",
        SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES),
    )
    values = {
        "key_id": key_id,
        "tenant": key.tenant,
        "name": key.name,
        "digest": digest_of_key(secret),
        "scopes": ",".join(sorted(key.scopes)),
        "limits": json_text(asdict(key.limits)),
        "made_by": key.made_by,
        "counted_as": key.counted_as,
        "created_at": time.time(),
        "expires_at": key.expires_at,
    }
    connection.execute(insert(api_keys).values(values))
    return key_id, secret


def _revoke(connection: Connection, key_id: str) -> bool:
    query = update(api_keys).where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
    return connection.execute(query.values(revoked_at=time.time())).rowcount == 1


def _key_of(row: Row[Any]) -> ApiKey:
    return ApiKey(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        scopes=frozenset(filter(None, row.scopes.split(","))),
        limits=KeyLimits(**orjson.loads(row.limits)),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        made_by=row.made_by,
        counted_as=row.counted_as,
    )
