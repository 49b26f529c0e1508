"""Endpoints that want events, and what is on its way to each.

A delivery is tried by one process at a time, under a lease, until it arrives.

Leases run on the database's clock. A process that dies while it sends leaves its lease to end; the
delivery is then tried again, with the same event id.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from penstock_ledger.door_stores.events import (
    AT_ONCE,
    CALLBACK,
    ENDPOINTS_MAX,
    EVENT_TYPES,
    TEST_EVENT,
    callback_id,
    new_event,
)
from penstock_ledger.door_stores.whose import Whose
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.sqlite_file import unindexed
from penstock_ledger.sql.tables import door_batches, jobs, webhook_deliveries, webhook_endpoints

__all__ = ["Delivery", "DueDelivery", "Endpoint", "NewCallback", "NewEndpoint", "WebhookStore"]

ERROR_MAX: Final = 500  # characters of an error that are kept
TESTS_MAX: Final = 100  # of one endpoint that wait: each look for what is due reads all of them
_FORGOTTEN_AT_ONCE: Final = 1_000
# of an endpoint that sign as well: more are taken up only by one that is rotated by a loop
OLD_SECRETS_MAX: Final = 4
HELD_LOOK_S: Final = 1.0  # between two looks whether a lease of another process has ended
# for which nothing has arrived at an endpoint: longer than a weekend without anyone at work
FAILING_MAX_S: Final = 5 * 86_400.0
_END: Final = webhook_endpoints.c
_DEL: Final = webhook_deliveries.c
# Callbacks stand apart from the endpoints of their tenant, which are few: before its name is a
# character that no tenant's name has. Processes of the release before send nothing there.
_APART: Final = "\x1f"
_OF_ENDPOINT: Final = _DEL.endpoint_id == _END.endpoint_id


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    endpoint_id: str
    tenant: str | None
    url: str
    secret: str
    events: Collection[str]


@dataclass(frozen=True, slots=True)
class NewCallback:
    """A receiver of the events of one batch or job."""

    object_id: str
    tenant: str | None
    url: str
    secret: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    endpoint_id: str
    tenant: str | None
    url: str
    events: Sequence[str]
    created_at: float
    # the first try that failed since one arrived; None: the last one arrived, or none was made
    failing_since: float | None
    disabled_at: float | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Delivery:
    event_id: str
    endpoint_id: str
    type: str
    created_at: float
    tries: int
    next_at: float | None  # None: nothing more is tried
    delivered_at: float | None
    gave_up_at: float | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """One try that this process holds."""

    event_id: str
    endpoint_id: str
    payload: str
    tries: int  # before this one
    url: str
    secrets: Sequence[str]  # each signs; several while the endpoint changes from one to the next


class WebhookStore:
    """Both tables."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, new: NewEndpoint) -> Endpoint | None:
        """Add an endpoint; None where the tenant has as many as one may have."""
        values = {
            "endpoint_id": new.endpoint_id,
            "tenant": new.tenant,
            "url": new.url,
            "secret": new.secret,
            "events": ",".join(sorted(new.events)),
            "created_at": time.time(),
        }
        own = Whose(new.tenant).holds(_END.tenant)

        def insert_one(connection: Connection) -> Row[Any] | None:
            # else two at once pass the limit together
            self._db.lock(connection, f"penstock:webhooks:{new.tenant or ''}")
            if connection.execute(select(func.count()).where(own)).scalar_one() >= ENDPOINTS_MAX:
                return None
            connection.execute(insert(webhook_endpoints).values(values))
            return connection.execute(
                select(webhook_endpoints).where(_END.endpoint_id == new.endpoint_id)
            ).one()

        row = self._db.write(insert_one)
        return None if row is None else _endpoint_of(row)

    def call_back(self, new: NewCallback) -> bool:
        """Send what becomes of a batch or job to its callback; False where it has one.

        What has become of it by now is sent, too: the object is held meanwhile, so that its next
        state finds the callback, or is found here.
        """
        endpoint_id = callback_id(new.object_id)
        values = {
            "endpoint_id": endpoint_id,
            "tenant": f"{_APART}{new.tenant or ''}",
            "url": new.url,
            "secret": new.secret,
            "events": CALLBACK,
            "created_at": time.time(),
        }
        statement = self._db.insert(webhook_endpoints).values(values).on_conflict_do_nothing()

        def write(connection: Connection) -> bool:
            if connection.execute(statement).rowcount != 1:
                return False
            for begin, table, key in (
                ("job.", jobs, jobs.c.job_id),
                ("batch.", door_batches, door_batches.c.batch_id),
            ):
                held = select(table.c.state).where(key == new.object_id).with_for_update()
                event = f"{begin}{connection.execute(held).scalar_one_or_none()}"
                if event in EVENT_TYPES:
                    new_event(connection, [endpoint_id], event, new.object_id)
            return True

        return self._db.write(write)

    def get(self, endpoint_id: str, whose: Whose) -> Endpoint | None:
        query = select(webhook_endpoints).where(*_one(endpoint_id, whose))
        row = self._db.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else _endpoint_of(row)

    def page(
        self, whose: Whose, *, limit: int, after: str | None = None
    ) -> tuple[list[Endpoint], bool] | None:
        """Return endpoints, newest first, and whether there are more.

        None for an unknown ``after``.
        """
        query = select(webhook_endpoints).where(whose.holds(_END.tenant), _END.events != CALLBACK)
        query = query.order_by(_END.created_at.desc(), _END.endpoint_id.desc()).limit(limit + 1)

        def look(connection: Connection) -> tuple[list[Endpoint], bool] | None:
            chosen = query
            if after is not None:
                made = connection.execute(
                    select(_END.created_at).where(*_one(after, whose))
                ).scalar_one_or_none()
                if made is None:
                    return None
                same = and_(_END.created_at == made, _END.endpoint_id < after)
                chosen = chosen.where(or_(_END.created_at < made, same))
            rows = connection.execute(chosen).all()
            return [_endpoint_of(row) for row in rows[:limit]], len(rows) > limit

        return self._db.read(look)

    def remove(self, endpoint_id: str, whose: Whose) -> bool:
        """Remove an endpoint with all that is on its way there."""

        def forget(connection: Connection) -> bool:
            if (
                connection.execute(
                    delete(webhook_endpoints).where(*_one(endpoint_id, whose))
                ).rowcount
                != 1
            ):
                return False
            connection.execute(delete(webhook_deliveries).where(_DEL.endpoint_id == endpoint_id))
            return True

        return self._db.write(forget)

    def rotate(self, endpoint_id: str, whose: Whose, secret: str, *, overlap_s: float) -> bool:
        """Sign with ``secret`` from now on, and with those before as well for a while.

        All of them: who asks again, for the answer was lost, has not got the one in between."""
        its_row = select(webhook_endpoints).where(*_one(endpoint_id, whose)).with_for_update()

        def change(connection: Connection) -> bool:
            row = connection.execute(its_row).one_or_none()
            if row is None:
                return False
            now = time.time()
            before = [one for one in _signing(row, now) if one != secret][:OLD_SECRETS_MAX]
            values = {"old_secret": " ".join(before), "old_until": now + overlap_s}
            its = update(webhook_endpoints).where(_END.endpoint_id == endpoint_id)
            connection.execute(its.values(secret=secret, **values))
            return True

        return self._db.write(change)

    def enable(self, endpoint_id: str, whose: Whose) -> bool:
        """Send events there again: those from now on."""
        query = (
            update(webhook_endpoints)
            .where(*_one(endpoint_id, whose))
            .values(disabled_at=None, why=None, failing_since=None)
        )
        return self._db.write(lambda connection: connection.execute(query).rowcount) == 1

    def disable(self, endpoint_id: str, why: str) -> None:
        """Send nothing there any more, also not what is on its way."""

        self._db.write(lambda connection: _disable(connection, endpoint_id, why))

    def test(self, endpoint_id: str) -> str | None:
        """Send an event to this endpoint alone; return its id.

        None where TESTS_MAX of them wait to be sent.
        """
        waiting = select(_DEL.event_id).where(
            _DEL.endpoint_id == endpoint_id, _DEL.type == TEST_EVENT, _DEL.next_at.is_not(None)
        )

        def add(connection: Connection) -> str | None:
            if len(connection.execute(waiting.limit(TESTS_MAX)).all()) == TESTS_MAX:
                return None
            return new_event(connection, [endpoint_id], TEST_EVENT, endpoint_id)

        return self._db.write(add)

    def deliveries(self, endpoint_id: str, limit: int) -> list[Delivery]:
        """Return the deliveries, newest first."""
        query = (
            select(webhook_deliveries)
            .where(_DEL.endpoint_id == endpoint_id)
            .order_by(_DEL.created_at.desc(), _DEL.event_id.desc())
            .limit(limit)
        )
        return [_delivery_of(row) for row in self._db.rows(query)]

    def again(self, event_id: str, endpoint_id: str) -> bool:
        """Try a delivery now, also one that arrived or was given up; with the same event id.

        False where there is none."""
        query = (
            update(webhook_deliveries)
            .where(_DEL.event_id == event_id, _DEL.endpoint_id == endpoint_id)
            .values(next_at=AT_ONCE, tries=0, delivered_at=None, gave_up_at=None)
        )
        return self._db.write(lambda connection: connection.execute(query).rowcount) == 1

    def due_in_s(self) -> float:
        """Return in how many seconds ``claim`` may find some: 0 for now, infinite for none.

        Where all whose time has come are held, their leases are looked at again after a second.
        Takes no lock."""

        def look(connection: Connection) -> float:
            now = self._db.now(connection)
            query = select(_DEL.event_id).where(_due(now)).limit(1)
            if connection.execute(query).first() is not None:
                return 0.0
            first = connection.execute(select(func.min(_DEL.next_at))).scalar_one()
            if first is None:
                return math.inf
            return float(first - now) if first > now else HELD_LOOK_S

        return self._db.read(look)

    def claim(
        self,
        owner: str,
        ttl_s: float,
        *,
        most: int,
        per_endpoint: int,
        without: Collection[str] = (),
    ) -> list[DueDelivery]:
        """Lease deliveries whose time has come, a few of each endpoint.

        So none waits behind another's many. Endpoints of tenants for whom ``owner`` does less come
        first: one whose receivers never answer fills no more than is left over."""

        def take(connection: Connection) -> list[DueDelivery]:
            now = self._db.now(connection)
            first = func.min(_DEL.next_at)
            # of its tenant's endpoints
            nth = func.row_number().over(partition_by=_END.tenant, order_by=first)
            waiting = (
                select(_DEL.endpoint_id)
                .outerjoin(webhook_endpoints, _OF_ENDPOINT)
                .where(_due(now), _DEL.endpoint_id.not_in(list(without)))
                .group_by(unindexed(_DEL.endpoint_id), _END.tenant)
                .order_by(nth + _under_way(connection, owner, now), first)
                .limit(most)
            )
            lease = _Lease(owner, now, now + ttl_s)
            taken: list[DueDelivery] = []
            for endpoint_id in connection.execute(waiting).scalars().all():
                taken += _taken(
                    connection, endpoint_id, lease, min(per_endpoint, most - len(taken))
                )
            return taken

        return self._db.write(take)

    def delivered(self, event_id: str, endpoint_id: str, owner: str) -> None:
        """Note that it has arrived."""

        def note(connection: Connection) -> None:
            values = {"next_at": None, "delivered_at": time.time(), "last_error": None}
            if _settled(connection, event_id, endpoint_id, owner, values):
                failing = _END.endpoint_id == endpoint_id, _END.failing_since.is_not(None)
                connection.execute(
                    update(webhook_endpoints).where(*failing).values(failing_since=None)
                )

        self._db.write(note)

    def failed(
        self, event_id: str, endpoint_id: str, owner: str, why: str, pause_s: float | None
    ) -> bool:
        """Try again after a pause; None: not any more.

        An endpoint where nothing has arrived for ``FAILING_MAX_S`` is disabled when a delivery is
        given up; whether that was so."""

        def note(connection: Connection) -> bool:
            now = self._db.now(connection)
            over = (
                {"next_at": None, "gave_up_at": now}
                if pause_s is None
                else {"next_at": now + pause_s}
            )
            if not _settled(
                connection, event_id, endpoint_id, owner, {"last_error": why[:ERROR_MAX], **over}
            ):
                return False
            named = _END.endpoint_id == endpoint_id, _END.disabled_at.is_(None)
            connection.execute(
                update(webhook_endpoints)
                .where(*named, _END.failing_since.is_(None))
                .values(failing_since=now)
            )
            since = connection.execute(
                select(_END.failing_since).where(*named)
            ).scalar_one_or_none()
            if pause_s is not None or since is None or now - since < FAILING_MAX_S:
                return False
            days = FAILING_MAX_S / 86_400
            _disable(
                connection,
                endpoint_id,
                f"nothing has arrived there for {days:g} days; the last try: {why}",
            )
            return True

        return self._db.write(note)

    def forget_before(self, when: float) -> int:
        """Remove deliveries that have arrived or were given up, made before a Unix time.

        At most some at once; how many. Callbacks that have heard of an end go at once."""
        ended = (
            select(_END.endpoint_id)
            .join(webhook_deliveries, _OF_ENDPOINT)
            .where(_END.events == CALLBACK, unindexed(_DEL.next_at).is_(None))
            .where(_DEL.type != "job.paused")
            .limit(_FORGOTTEN_AT_ONCE)
        )
        old = select(_DEL.event_id, _DEL.endpoint_id).where(
            _DEL.created_at < when, _DEL.next_at.is_(None)
        )

        def forget(connection: Connection) -> int:
            heard = connection.execute(ended).scalars().all()
            if heard:
                connection.execute(delete(webhook_endpoints).where(_END.endpoint_id.in_(heard)))
            rows = connection.execute(old.limit(_FORGOTTEN_AT_ONCE)).all()
            for row in rows:
                named = _DEL.event_id == row.event_id, _DEL.endpoint_id == row.endpoint_id
                connection.execute(delete(webhook_deliveries).where(*named))
            return len(rows)

        return self._db.write(forget)


class _Lease(NamedTuple):
    owner: str
    now: float
    until: float


def _under_way(connection: Connection, owner: str, now: float) -> ColumnElement[int]:
    """Return how many deliveries ``owner`` holds of the tenant of an endpoint."""
    held = (
        select(_END.tenant, func.count())
        .join(webhook_deliveries, _OF_ENDPOINT)
        .group_by(_END.tenant)
    )
    held = held.where(_DEL.next_at <= now, _DEL.owner == owner, _DEL.lease_until > now)
    each = [
        (_END.tenant.is_not_distinct_from(tenant), number)
        for tenant, number in connection.execute(held).all()
    ]
    return case(*each, else_=0) if each else literal(0)


def _settled(
    connection: Connection, event_id: str, endpoint_id: str, owner: str, values: dict[str, Any]
) -> bool:
    """Return whether this process still held it."""
    named = and_(_DEL.event_id == event_id, _DEL.endpoint_id == endpoint_id, _DEL.owner == owner)
    query = update(webhook_deliveries).where(named)
    return (
        connection.execute(
            query.values(tries=_DEL.tries + 1, owner=None, lease_until=None, **values)
        ).rowcount
        == 1
    )


def _disable(connection: Connection, endpoint_id: str, why: str) -> None:
    now = time.time()
    named = update(webhook_endpoints).where(
        _END.endpoint_id == endpoint_id, _END.disabled_at.is_(None)
    )
    connection.execute(named.values(disabled_at=now, why=why[:ERROR_MAX]))
    waiting = update(webhook_deliveries).where(
        _DEL.endpoint_id == endpoint_id, _DEL.next_at.is_not(None)
    )
    connection.execute(waiting.values(next_at=None, gave_up_at=now))


def _taken(connection: Connection, endpoint_id: str, lease: _Lease, most: int) -> list[DueDelivery]:
    found = select(webhook_endpoints).where(
        _END.endpoint_id == endpoint_id, _END.disabled_at.is_(None)
    )
    endpoint = connection.execute(found).one_or_none()
    due = and_(unindexed(_DEL.endpoint_id) == endpoint_id, _due(lease.now))
    if endpoint is None:  # removed or disabled between an event and its delivery
        connection.execute(
            update(webhook_deliveries).where(due).values(next_at=None, gave_up_at=lease.now)
        )
        return []
    taken = []
    for row in connection.execute(
        select(webhook_deliveries).where(due).order_by(_DEL.next_at).limit(most)
    ).all():
        held = update(webhook_deliveries).where(due, _DEL.event_id == row.event_id)
        if (
            connection.execute(held.values(owner=lease.owner, lease_until=lease.until)).rowcount
            == 1
        ):
            taken.append(_due_of(row, endpoint, lease.now))
    return taken


def _due(now: float) -> ColumnElement[bool]:
    return and_(_DEL.next_at <= now, or_(_DEL.owner.is_(None), _DEL.lease_until <= now))


def _one(endpoint_id: str, whose: Whose) -> tuple[Any, Any]:
    return _END.endpoint_id == endpoint_id, whose.holds(_END.tenant)


def _endpoint_of(row: Row[Any]) -> Endpoint:
    return Endpoint(
        endpoint_id=row.endpoint_id,
        tenant=row.tenant,
        url=row.url,
        events=row.events.split(","),
        created_at=row.created_at,
        failing_since=row.failing_since,
        disabled_at=row.disabled_at,
        why=row.why,
    )


def _delivery_of(row: Row[Any]) -> Delivery:
    return Delivery(
        event_id=row.event_id,
        endpoint_id=row.endpoint_id,
        type=row.type,
        created_at=row.created_at,
        tries=row.tries,
        next_at=row.next_at,
        delivered_at=row.delivered_at,
        gave_up_at=row.gave_up_at,
        last_error=row.last_error,
    )


def _signing(endpoint: Row[Any], now: float) -> list[str]:
    """Return the secrets that deliveries are signed with, the newest first."""
    if endpoint.old_secret is None or endpoint.old_until <= now:
        return [endpoint.secret]
    return [endpoint.secret, *endpoint.old_secret.split()]


def _due_of(row: Row[Any], endpoint: Row[Any], now: float) -> DueDelivery:
    secrets = _signing(endpoint, now)
    return DueDelivery(row.event_id, row.endpoint_id, row.payload, row.tries, endpoint.url, secrets)
