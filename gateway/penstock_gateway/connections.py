"""All open connections of a process, within a limit in all and of each address.

Who keeps the process waiting goes first.

Thousands of connections that say nothing, or that never end what they began, cannot keep others
out: they drop one another.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Final, Protocol

from penstock_gateway.metrics import DoorMetrics

__all__ = ["PROBE_PLACES", "Connection", "ConnectionBook", "Waiting"]

PROBE_PLACES: Final = 16
"""Beside the limit, for those who ask whether the door is healthy while all places hold work. Other
requests on these are 503."""


class Connection(Protocol):
    def drop(self) -> None:
        """End it at once, without another word."""
        ...


class Waiting(IntEnum):
    """The reasons to close a connection for a new one, in the order in which they go."""

    FOR_A_STRANGER = 0  # of whom no key is known: to send the rest of a body, or to read an answer
    FOR_A_REQUEST = 1  # there is none, or its head is not whole
    FOR_A_CALLER = 2  # whose key is known: to send the rest of a body, or to read an answer


class _Order:
    """Connections that may be closed: of each kind the one that has waited longest first."""

    def __init__(self) -> None:
        self.number = 0  # of all connections, those that may not be closed as well
        self._kinds: dict[Waiting, dict[Connection, None]] = {kind: {} for kind in Waiting}

    def put(self, connection: Connection, kind: Waiting | None) -> None:
        """Place it behind all others of its kind; None: it may not be closed."""
        for one in self._kinds.values():
            one.pop(connection, None)
        if kind is not None:
            self._kinds[kind][connection] = None

    def first(self) -> Connection | None:
        return next((next(iter(found)) for found in self._kinds.values() if found), None)


class RequestsUnderWay:
    """Requests that came over a balancer, at most so many of each address that it names."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._number: Counter[str] = Counter()
        self._asked_by: dict[Connection, str] = {}

    def begin(self, connection: Connection, address: str) -> bool:
        """Count a request that came over a balancer.

        It is False where its address has too many under way."""
        self.end(connection)
        if self._number[address] >= self._most:
            return False
        self._number[address] += 1
        self._asked_by[connection] = address
        return True

    def end(self, connection: Connection) -> None:
        """Note that the request of a connection is answered."""
        address = self._asked_by.pop(connection, None)
        if address is not None:
            self._number[address] -= 1
            if not self._number[address]:
                del self._number[address]


class ConnectionBook:
    """The open connections: ``most`` in all, and ``of_address`` of one address where it is known.

    What comes over a balancer that is trusted has the balancer's address, and is counted by
    request, under the address that the balancer names."""

    def __init__(self, most: int, metrics: DoorMetrics, *, of_address: int) -> None:
        self._most = most
        self._of_address = of_address
        self._metrics = metrics.connections
        self._open: dict[Connection, str | None] = {}  # its address
        self._kinds: dict[Connection, Waiting | None] = {}
        self._all = _Order()
        self._by_address: dict[str, _Order] = {}
        self._spare: set[Connection] = set()
        self.requests = RequestsUnderWay(of_address)

    def opened(self, connection: Connection, address: str | None) -> None:
        """Take it in; where there is no place, another one is dropped for it, or it is itself."""
        has_place = self._has_place(address)
        if not has_place and not self._has_place(address, PROBE_PLACES):
            self._drop(connection)
            return
        if not has_place:
            self._spare.add(connection)
        self._open[connection] = address
        for order in self._orders(address):
            order.number += 1
        self._metrics.open.set(len(self._open))
        self.waits(connection, Waiting.FOR_A_REQUEST)

    def waits(self, connection: Connection, kind: Waiting | None, *, again: bool = True) -> None:
        """Note what a connection waits for; None: the door itself is at work.

        ``again``: with the same kind as before it goes to the end of the line."""
        if connection not in self._open or (not again and self._kinds.get(connection) == kind):
            return
        self._kinds[connection] = kind
        for order in self._orders(self._open[connection]):
            order.put(connection, kind)

    def is_spare(self, connection: Connection) -> bool:
        """Return whether it has one of the places that are kept for probes."""
        if connection not in self._spare:
            return False
        number, its_number = len(self._open), self._number_of(self._open[connection])
        if number <= self._most and its_number <= self._of_address:
            self._spare.discard(connection)  # others have gone meanwhile
        return connection in self._spare

    def closed(self, connection: Connection) -> None:
        if connection not in self._open:
            return
        self.waits(connection, None)
        self.requests.end(connection)
        address = self._open.pop(connection)
        self._kinds.pop(connection)
        self._spare.discard(connection)
        for order in self._orders(address):
            order.number -= 1
        if address is not None and not self._by_address[address].number:
            del self._by_address[address]
        self._metrics.open.set(len(self._open))

    def _has_place(self, address: str | None, more: int = 0) -> bool:
        """Return whether there is a place for a newcomer, also by dropping another connection.

        One of its own address is dropped where that has too many. ``more``: beside the limits."""
        if self._number_of(address) >= self._of_address + more and not self._make_room(
            self._by_address.get(address or "")
        ):
            return False
        return len(self._open) < self._most + more or self._make_room(self._all)

    def _number_of(self, address: str | None) -> int:
        found = None if address is None else self._by_address.get(address)
        return 0 if found is None else found.number

    def _make_room(self, among: _Order | None) -> bool:
        victim = None if among is None else among.first()
        if victim is None:
            return False
        self._drop(victim)
        return True

    def _drop(self, connection: Connection) -> None:
        self.closed(connection)
        self._metrics.dropped.inc()
        connection.drop()

    def _orders(self, address: str | None) -> tuple[_Order, ...]:
        return (
            (self._all,)
            if address is None
            else (self._all, self._by_address.setdefault(address, _Order()))
        )
